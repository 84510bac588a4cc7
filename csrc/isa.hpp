// Which instruction set the kernels use: everything is built for the baseline, wider code is chosen
// at run time by what the processor has.
#pragma once

#include <string_view>

namespace lineup {

enum class Isa { plain, avx2, avx512 };  // each includes those before it

// The widest this processor and operating system can run.
Isa best_isa();

// The instruction set of that name; the best one if the name is empty. Throws std::invalid_argument
// on a name that is none, or of one that this machine lacks.
Isa named_isa(std::string_view name);

const char* isa_name(Isa isa);

}  // namespace lineup

// What a function that is only called under Isa::avx2 or Isa::avx512 carries.
#if defined(__x86_64__)
#define LINEUP_X86 1
#define LINEUP_AVX2 __attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt")))
#define LINEUP_AVX512 \
    __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi,bmi2,lzcnt,popcnt")))
#else
#define LINEUP_X86 0
#endif
