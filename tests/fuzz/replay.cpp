// Runs a target once over each file of a folder, without libFuzzer: for compilers that lack it.
#include <filesystem>
#include <fstream>
#include <iterator>

#include "input.hpp"

int main(int count, char** arguments) {
    std::size_t files = 0;
    for (int i = 1; i < count; ++i) {
        for (const auto& entry : std::filesystem::directory_iterator(arguments[i])) {
            std::ifstream file(entry.path(), std::ios::binary);
            const std::vector<char> text{std::istreambuf_iterator<char>(file), {}};
            const std::vector<std::uint8_t> bytes(text.begin(), text.end());
            std::printf("%s\n", entry.path().c_str());  // the last one is what failed
            Input in(bytes);
            fuzz(in);
            ++files;
        }
    }
    EXPECT(files > 0);
    return 0;
}
