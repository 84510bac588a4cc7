#include "isa.hpp"

#include <stdexcept>
#include <string>

namespace lineup {
namespace {

Isa detect() {
#if LINEUP_X86
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
                      __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
    if (!avx2) return Isa::plain;
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
    return avx512 ? Isa::avx512 : Isa::avx2;
#else
    return Isa::plain;
#endif
}

}  // namespace

Isa best_isa() {
    static const Isa best = detect();
    return best;
}

Isa named_isa(std::string_view name) {
    if (name.empty()) return best_isa();
    for (const Isa isa : {Isa::plain, Isa::avx2, Isa::avx512}) {
        if (name != isa_name(isa)) continue;
        if (isa <= best_isa()) return isa;
        throw std::invalid_argument("LINEUP_ISA: expected at most " +
                                    std::string(isa_name(best_isa())) + " on this machine, got " +
                                    std::string(name));
    }
    throw std::invalid_argument("LINEUP_ISA: expected plain, avx2 or avx512, got " +
                                std::string(name));
}

const char* isa_name(Isa isa) {
    switch (isa) {
        case Isa::avx512:
            return "avx512";
        case Isa::avx2:
            return "avx2";
        case Isa::plain:
            break;
    }
    return "plain";
}

}  // namespace lineup
