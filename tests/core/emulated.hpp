// Runs the bodies of csrc/cuda on the processor, thread after thread, phase after phase.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

// In which order the threads of a block take their step, and the blocks their turn. Results that
// depend on it come from threads that meddle with each other within a phase.
enum class Turns { rising, falling, odd_first };

struct EmulatedMachine {
    template <class T>
    using Buffer = std::vector<T>;

    Turns turns = Turns::rising;
    std::size_t launches = 0;

    template <class T>
    std::vector<T> room(std::size_t n) {
        std::vector<T> made(n);
        garble(made.data(), n * sizeof(T));
        return made;
    }

    template <class T>
    std::vector<std::remove_const_t<T>> upload(std::span<T> from) {
        return {from.begin(), from.end()};
    }

    template <class T>
    void download(const std::vector<T>& from, std::span<T> to) {
        std::copy_n(from.begin(), to.size(), to.begin());
    }

    template <class Body>
    void launch(std::size_t blocks, const Body& body) {
        ++launches;
        for (const std::size_t block : order(blocks)) run_block(block, body);
    }

  private:
    // Memory of a device holds anything at first.
    static void garble(void* memory, std::size_t bytes) {
        if (bytes > 0) std::memset(memory, 0xA5, bytes);
    }

    std::vector<std::size_t> order(std::size_t n) const {
        std::vector<std::size_t> found(n);
        for (std::size_t i = 0; i < n; ++i) {
            found[i] = turns == Turns::falling ? n - 1 - i : i;
        }
        if (turns == Turns::odd_first) {
            std::stable_partition(found.begin(), found.end(), [](auto i) { return i % 2 == 1; });
        }
        return found;
    }

    template <class Body>
    void run_block(std::size_t block, const Body& body) {
        using Shared = typename Body::Shared;
        using State = typename Body::State;
        static_assert(std::is_trivially_copyable_v<Body>);  // as arguments of a kernel must be
        static_assert(std::is_trivially_default_constructible_v<Shared>);
        static_assert(std::is_trivially_default_constructible_v<State>);
        static_assert(sizeof(Shared) <= 48 * 1024);  // what a block may declare
        std::vector<Shared> shared(1);
        garble(shared.data(), sizeof(Shared));
        std::vector<State> states(Body::kThreads);
        garble(states.data(), states.size() * sizeof(State));
        const std::vector<std::size_t> threads = order(Body::kThreads);
        const std::size_t phases = body.phases(block);
        for (std::size_t phase = 0; phase < phases; ++phase) {
            for (const std::size_t thread : threads) {
                body.step(phase, block, thread, states[thread], shared.front());
            }
        }
    }
};
