// What tests of groups share, whatever their members send by: numbered messages from several threads, and whether all
// of them came once and in order. A person has `all`, its lane to all others, and `from`, what it has of another.
#pragma once

#include <string>
#include <thread>
#include <vector>

#include "groups/outgoing.hpp"
#include "nodes.hpp"

namespace antiphon::tests {

inline std::string message(int thread, std::uint64_t number, std::size_t size) {
    std::string text = std::to_string(thread) + ":" + std::to_string(number) + ":";
    text.resize(std::max(text.size(), size), static_cast<char>('a' + number % 26));
    return text;
}

template <typename Person>
bool send(Person& person, std::string_view text) {
    if (person.all->try_put(text) == groups::Outgoing::Put::put) return true;
    return person.all->put(text, now_ns() + check::patience(30 * kSecond), nullptr).ok();
}

template <typename Person>
bool settle(Person& person) {
    return person.all->settle(now_ns() + check::patience(30 * kSecond), nullptr);
}

// `count` messages of each of two threads of everybody, of the sizes that `size_of` says for their numbers: all others
// have them.
template <typename Person, typename Sizes>
void send_to_each_other(const std::vector<Person*>& all, std::uint64_t count, const Sizes& size_of) {
    std::vector<std::thread> threads;
    for (Person* one : all) {
        for (int t = 0; t < 2; ++t) {
            threads.emplace_back([&size_of, one, t, count] {
                for (std::uint64_t i = 0; i < count; ++i) CHECK(send(*one, message(t, i, size_of(i))));
            });
        }
    }
    for (auto& thread : threads) thread.join();
    for (Person* one : all) CHECK(settle(*one));
    for (Person* one : all) {
        for (Person* other : all) {
            if (one == other) continue;
            std::uint64_t next[2] = {0, 0};
            for (const std::string& text : one->from(*other)) {
                const int t = text[0] - '0';
                const std::string begin = std::to_string(t) + ":" + std::to_string(next[t]) + ":";
                CHECK(text.compare(0, begin.size(), begin) == 0);
                ++next[t];
            }
            CHECK_EQUAL(next[0], count);
            CHECK_EQUAL(next[1], count);
        }
    }
}

}  // namespace antiphon::tests
