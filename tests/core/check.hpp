// The few macros the tests of the core need: a failed check says where and what, and counts.
#pragma once

#include <cstdio>
#include <exception>
#include <string>

inline int failed_checks = 0;

#define CHECK(condition)                                                        \
    do {                                                                        \
        if (!(condition)) {                                                     \
            std::printf("%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
            ++failed_checks;                                                    \
        }                                                                       \
    } while (false)

// Checks that the statement throws an exception of the type whose what() is exactly `text`.
#define CHECK_THROWS(statement, type, text)                                   \
    do {                                                                      \
        std::string got = "no exception";                                     \
        try {                                                                 \
            statement;                                                        \
        } catch (const type& error) {                                         \
            got = error.what();                                               \
        }                                                                     \
        if (got != (text)) {                                                  \
            std::printf("%s:%d: got: %s\n", __FILE__, __LINE__, got.c_str()); \
            ++failed_checks;                                                  \
        }                                                                     \
    } while (false)

// What main() returns.
inline int check_result() {
    return failed_checks == 0 ? 0 : 1;
}
