// What the native tests are written with: checks, names that are sentences, and a clock that ends a
// test that hangs. Included once per executable: it brings main().
//
//   test_ring                   runs everything
//   test_ring wrap              runs the tests whose name holds "wrap"
//   ANTIPHON_STRESS=full        longer counts
//   ANTIPHON_SEED=7             another random course; the seed is printed
//
// A check may fail on any thread: it prints where, and ends the process there and then. Unwinding
// would join threads that wait for the one that failed.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/clock.hpp"

namespace check {

// A sanitizer's price: fewer rounds, and more patience with those.
#if defined(__SANITIZE_THREAD__)
inline constexpr int kFewer = 4, kPatience = 8;
#elif defined(__SANITIZE_ADDRESS__)
inline constexpr int kFewer = 2, kPatience = 4;
#else
inline constexpr int kFewer = 1, kPatience = 1;
#endif

struct Test {
    const char* name;
    void (*run)();
};

inline std::vector<Test>& tests() {
    static std::vector<Test> all;
    return all;
}

inline const char* running = "";
inline std::uint64_t seed = 1;

struct Add {
    Add(const char* name, void (*run)()) { tests().push_back({name, run}); }
};

inline bool full() {
    const char* mode = std::getenv("ANTIPHON_STRESS");
    return mode != nullptr && std::strcmp(mode, "full") == 0;
}

// How often: in every run, and with ANTIPHON_STRESS=full. Less where a sanitizer slows us down.
inline std::uint64_t count(std::uint64_t small, std::uint64_t large) {
    return full() ? large : std::max<std::uint64_t>(1, small / kFewer);
}

inline antiphon::Nanos patience(antiphon::Nanos wanted) { return wanted * kPatience; }

// Every thread draws from its own generator, so that its course does not depend on the others.
inline std::mt19937_64 random(std::uint64_t stream) { return std::mt19937_64(seed * 1000003 + stream); }

template <typename Generator>
std::uint64_t below(Generator& generator, std::uint64_t bound) {
    return generator() % bound;
}

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
    std::fprintf(stderr, "%s:%d: %s\n  in: %s (seed %llu)\n", file, line, what.c_str(), running,
                 static_cast<unsigned long long>(seed));
    std::fflush(stderr);
    std::_Exit(1);
}

template <typename T>
std::string show(const T& value) {
    std::ostringstream text;
    if constexpr (std::is_enum_v<T>) {
        text << static_cast<long long>(value);
    } else if constexpr (std::is_same_v<T, std::uint8_t> || std::is_same_v<T, char>) {
        text << static_cast<int>(value);
    } else {
        text << value;
    }
    return text.str();
}

template <typename A, typename B>
bool same(const A& a, const B& b) {
    if constexpr (std::is_integral_v<A> && std::is_integral_v<B> && !std::is_same_v<A, bool> &&
                  !std::is_same_v<B, bool>) {
        return std::cmp_equal(a, b);
    } else {
        return a == b;
    }
}

// Looks until it is so. For things that another thread brings about soon.
template <typename Condition>
bool soon(Condition&& condition, antiphon::Nanos within = 20 * antiphon::kSecond) {
    const antiphon::Nanos until = antiphon::now_ns() + patience(within);
    while (!condition()) {
        if (antiphon::now_ns() >= until) return false;
        std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return true;
}

inline void on_alarm(int) {
    // Only what a signal handler may call.
    static const char before[] = "still running after its time: ";
    [[maybe_unused]] ssize_t ignored = write(2, before, sizeof before - 1);
    ignored = write(2, running, std::strlen(running));
    ignored = write(2, "\n", 1);
    abort();  // a core, or a debugger, shows where every thread stands
}

// Most take a second or two; a machine that is busy with other things may take a hundred times as long for
// threads that hand things over to each other.
inline unsigned seconds_per_test() { return full() ? 1200u : 180u * kPatience; }

}  // namespace check

#define CHECK_JOIN_(a, b) a##b
#define CHECK_JOIN(a, b) CHECK_JOIN_(a, b)

#define TEST(name)                                                                       \
    static void CHECK_JOIN(test_, __LINE__)();                                           \
    static const check::Add CHECK_JOIN(add_, __LINE__)(name, CHECK_JOIN(test_, __LINE__)); \
    static void CHECK_JOIN(test_, __LINE__)()

#define CHECK(condition)                                                    \
    do {                                                                    \
        if (!(condition)) check::fail(__FILE__, __LINE__, "not so: " #condition); \
    } while (false)

#define CHECK_EQUAL(a, b)                                                                          \
    do {                                                                                           \
        const auto check_a = (a);                                                                  \
        const auto check_b = (b);                                                                  \
        if (!check::same(check_a, check_b)) {                                                      \
            check::fail(__FILE__, __LINE__, std::string(#a " is ") + check::show(check_a) + ", not " #b \
                                                " = " + check::show(check_b));                     \
        }                                                                                          \
    } while (false)

#define CHECK_SAYS(condition, text)                                                             \
    do {                                                                                        \
        if (!(condition)) check::fail(__FILE__, __LINE__, std::string("not so: " #condition "; ") + (text)); \
    } while (false)

int main(int count, char** arguments) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    if (const char* given = std::getenv("ANTIPHON_SEED")) check::seed = std::strtoull(given, nullptr, 10);
    std::signal(SIGALRM, check::on_alarm);
    int ran = 0;
    for (const check::Test& test : check::tests()) {
        if (count > 1 && std::strstr(test.name, arguments[1]) == nullptr) continue;
        check::running = test.name;
        alarm(check::seconds_per_test());
        const antiphon::Nanos began = antiphon::now_ns();
        test.run();
        alarm(0);
        std::printf("%7.2f s  %s\n", static_cast<double>(antiphon::now_ns() - began) / antiphon::kSecond, test.name);
        ++ran;
    }
    std::printf("%d tests, seed %llu%s\n", ran, static_cast<unsigned long long>(check::seed),
                check::full() ? ", full counts" : "");
    return ran == 0 ? 1 : 0;
}
