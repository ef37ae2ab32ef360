// Filters and their index without Python: under the sanitizers, against random and hostile texts.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.hpp"
#include "match/filter.hpp"
#include "match/index.hpp"
#include "match/utf8.hpp"

using namespace antiphon::match;

namespace {

std::shared_ptr<const Filter> read(const std::string& text) {
    Mistake mistake;
    auto filter = Filter::read(text, mistake);
    const std::string at = "column " + std::to_string(mistake.column);
    if (!filter) check::fail(__FILE__, __LINE__, text + ", " + at + ": " + mistake.why);
    return filter;
}

std::uint32_t column_of_mistake(const std::string& text) {
    Mistake mistake;
    CHECK(Filter::read(text, mistake) == nullptr);
    CHECK(!mistake.expected.empty());
    return mistake.column;
}

Properties properties(const std::vector<std::pair<const char*, Value>>& all) {
    Properties made;
    for (const auto& [name, value] : all) CHECK(made.add(name, value));
    return made;
}

Value number(std::int64_t value) { return Value::of(value); }
Value number(double value) { return Value::of(value); }
Value text(std::string_view value) { return Value::of(value); }

// The definition of LIKE, in time that grows without bound.
bool like(std::string_view text, std::string_view pattern) {
    if (pattern.empty()) return text.empty();
    if (pattern[0] == '%' && like(text, pattern.substr(1))) return true;
    if (pattern[0] == '%') return !text.empty() && like(text.substr(next_character(text, 0)), pattern);
    if (text.empty()) return false;
    const std::size_t of_text = next_character(text, 0), of_pattern = next_character(pattern, 0);
    if (pattern[0] != '_' && text.substr(0, of_text) != pattern.substr(0, of_pattern)) return false;
    return like(text.substr(of_text), pattern.substr(of_pattern));
}

}  // namespace

TEST("conditions have three answers") {
    const Properties some =
        properties({{"a", number(std::int64_t{7})}, {"x", number(2.5)}, {"s", text("EU")}, {"on", Value::of(true)}});
    const std::map<std::string, Truth> answers = {
        {"a = 7 AND x < 3", Truth::yes},
        {"a = 7 AND x > 3", Truth::no},
        {"a = 7 AND z > 3", Truth::unknown},
        {"a = 8 AND z > 3", Truth::no},
        {"a = 7 OR z > 3", Truth::yes},
        {"a = 8 OR z > 3", Truth::unknown},
        {"NOT z > 3", Truth::unknown},
        {"NOT on", Truth::no},
        {"on AND NOT a = 8", Truth::yes},
        {"s", Truth::unknown},
        {"s IN ('UK', 'EU')", Truth::yes},
        {"a BETWEEN 1 + 2 AND 2 * 5 - 1", Truth::yes},
        {"a / 2 = 3", Truth::yes},
        {"a / (a - 7) IS NULL", Truth::yes},
        {"9223372036854775807 + a IS NULL", Truth::yes},
        {"-9223372036854775808 = - 9223372036854775807 - 1", Truth::yes},
        {"s LIKE 'E_' AND s NOT LIKE 'U%'", Truth::yes},
        {"z LIKE '%'", Truth::unknown},
        {"(a = 7) = TRUE", Truth::yes},
    };
    for (const auto& [filter, truth] : answers) {
        if (read(filter)->evaluate(some) != truth) check::fail(__FILE__, __LINE__, filter);
        CHECK_EQUAL(read(filter)->matches(some), truth == Truth::yes);
    }
}

TEST("mistakes have a column in characters") {
    CHECK_EQUAL(column_of_mistake(""), 1);
    CHECK_EQUAL(column_of_mistake("s = 'größe' AND"), 16);
    CHECK_EQUAL(column_of_mistake("a = 1 OR b ? 2"), 12);
    CHECK_EQUAL(column_of_mistake("s < 'x'"), 3);
    CHECK_EQUAL(column_of_mistake("a = 'x\xFF'"), 7);
    CHECK_EQUAL(column_of_mistake("a = '\xED\xA0\x80'"), 6);  // half of a surrogate pair
    CHECK_EQUAL(column_of_mistake(std::string(5000, ' ')), 4097);
    CHECK_EQUAL(column_of_mistake(std::string(1 << 20, '\x80')), 4097);
}

TEST("no depth of nesting costs the machine's stack") {
    const Properties one = properties({{"a", number(std::int64_t{1})}});
    CHECK(read(std::string(2045, '(') + "a = 1" + std::string(2045, ')'))->matches(one));
    std::string deep = "a";
    for (int i = 0; i < 500; ++i) deep = "1+(" + deep + ")";
    CHECK(column_of_mistake(deep + " = 1") > 100);
    std::string nots;
    for (int i = 0; i < 1000; ++i) nots += "NOT ";
    CHECK(read(nots + "a = 1")->matches(one));
    CHECK(read("a = " + std::string(4000, '-') + "1")->matches(one));
}

TEST("whatever the text is, it is a filter or a mistake with a column") {
    const std::vector<std::string> pieces = {
        "a",  "b", "'x'", "1", "2.5",  "(",      ")", " AND ", " OR ",   " NOT ",     "=",         "<>",   "<",    ">=", "+",
        "-",  "*", "/",   ",", " IN ", " LIKE ", "%", " IS ",  " NULL ", " BETWEEN ", " ESCAPE ", "TRUE", "\xFF", "'",  "\xC3\xA4",
        ".",  " "};
    auto generator = check::random(1);
    const Properties some = properties({{"a", number(std::int64_t{1})}, {"b", text("x")}});
    std::uint64_t good = 0;
    for (std::uint64_t round = check::count(40'000, 1'000'000); round != 0; --round) {
        std::string made;
        for (std::uint64_t left = check::below(generator, 14); left != 0; --left) {
            made += pieces[check::below(generator, pieces.size())];
        }
        Mistake mistake;
        if (const auto filter = Filter::read(made, mistake)) {
            ++good;
            CHECK_EQUAL(filter->matches(some), filter->evaluate(some) == Truth::yes);
        } else {
            CHECK(mistake.column >= 1 && mistake.column <= count_characters(made) + 1);
            CHECK(!mistake.expected.empty());
        }
    }
    CHECK(good != 0);
}

TEST("whatever the bytes are, they are properties or none") {
    auto generator = check::random(2);
    const auto filter = read("a > 1 OR b LIKE '%x%' OR c IS NULL");
    for (std::uint64_t round = check::count(100'000, 3'000'000); round != 0; --round) {
        std::string bytes;
        const char starts[] = {'\x81', '\x82', '\xDE', '\xDF'};
        bytes += starts[check::below(generator, sizeof starts)];
        for (std::uint64_t left = check::below(generator, 24); left != 0; --left) {
            bytes += check::below(generator, 2) ? std::string("\xA1") + "abc"[check::below(generator, 3)]
                                                : std::string(1, static_cast<char>(generator()));
        }
        // Of exactly their size, so that a step too far is seen.
        const std::unique_ptr<char[]> exact(new char[bytes.size()]);
        std::copy(bytes.begin(), bytes.end(), exact.get());
        const Properties found(std::string_view(exact.get(), bytes.size()));
        CHECK(found.size() <= Properties::kMost);
        filter->evaluate(found);
    }
}

TEST("LIKE finds what its definition says") {
    auto generator = check::random(3);
    const std::vector<std::string> letters = {"a", "b", "\xC3\xA4"}, signs = {"a", "b", "\xC3\xA4", "%", "_", "%"};
    for (std::uint64_t round = check::count(60'000, 1'000'000); round != 0; --round) {
        std::string subject, pattern;
        for (std::uint64_t left = check::below(generator, 10); left != 0; --left) {
            subject += letters[check::below(generator, letters.size())];
        }
        for (std::uint64_t left = check::below(generator, 8); left != 0; --left) {
            pattern += signs[check::below(generator, signs.size())];
        }
        Pattern made;
        CHECK(Pattern::read(pattern, "", made).empty());
        const bool expected = like(subject, pattern);
        if (made.matches(subject) != expected) check::fail(__FILE__, __LINE__, subject + " LIKE " + pattern);
    }
}

TEST("LIKE takes a time that grows with the text only") {
    const std::string subject(1 << 20, 'a');
    std::string percents, ones = "%";
    for (int i = 0; i < 1000; ++i) percents += "a%";
    for (int i = 0; i < 60; ++i) ones += i % 2 ? "_" : "a";
    for (const std::string& pattern : {percents + "b", "%" + std::string(3000, 'a') + "b%", ones + "b%"}) {
        Pattern made;
        CHECK(Pattern::read(pattern, "", made).empty());
        const antiphon::Nanos began = antiphon::now_ns();
        CHECK(!made.matches(subject));
        CHECK(antiphon::now_ns() - began < check::patience(2 * antiphon::kSecond));
    }
}

namespace {

// Conditions as users write them, and some that no index knows.
std::string random_condition(std::mt19937_64& generator) {
    const auto below = [&](std::uint64_t bound) { return std::to_string(check::below(generator, bound)); };
    const std::string name(1, "abcdef"[check::below(generator, 6)]);
    switch (check::below(generator, 16)) {
        case 0: return name + " = '" + below(3) + "'";
        case 1: return name + " IN ('" + below(3) + "', '" + below(3) + "', 'x')";
        case 2: return name + " = " + below(8);
        case 3: return name + " = " + below(8) + ".0";
        case 4: return name + " IN (" + below(8) + ", " + below(8) + ".0)";
        case 5: return name + " > " + below(8);
        case 6: return name + " <= " + below(8) + ".5";
        case 7: return below(8) + " <= " + name;
        case 8: return name + " BETWEEN " + below(8) + " AND " + below(12);
        case 9: return name + " >= " + below(8) + " AND " + name + " < " + below(12);
        case 10: return name + " LIKE '%" + below(3) + "%'";
        case 11: return name;
        case 12: return "NOT " + name;
        case 13: return "(" + name + " = " + below(8) + " OR " + name + " IS NULL)";
        case 14: return name + " <> " + below(8);
        default: return name + " BETWEEN 9007199254740992 AND 9007199254740993";
    }
}

}  // namespace

TEST("the index finds what the naive evaluator finds, while filters come and go") {
    auto generator = check::random(4);
    for (std::uint64_t round = check::count(40, 1000); round != 0; --round) {
        FilterIndex index;
        std::map<std::uint64_t, std::shared_ptr<const Filter>> all;
        for (int step = 0; step < 600; ++step) {
            const std::uint64_t id = check::below(generator, 400);
            if (check::below(generator, 4) == 0) {
                CHECK_EQUAL(index.remove(id), all.erase(id) == 1);
            } else {
                std::string filter = random_condition(generator);
                for (std::uint64_t more = check::below(generator, 4); more != 0; --more) {
                    filter += " AND " + random_condition(generator);
                }
                const auto made = read(filter);
                CHECK_EQUAL(index.add(id, made), all.emplace(id, made).second);
            }
            CHECK_EQUAL(index.size(), all.size());
            if (step % 4 != 0) continue;
            const Value values[] = {number(static_cast<std::int64_t>(check::below(generator, 9))),
                                    number(static_cast<double>(check::below(generator, 18)) / 2),
                                    number(std::int64_t{9007199254740993}), Value::of(false), Value::of(true),
                                    text("0"), text("1"), text("x"), Value{}};
            Properties event;
            for (const char* name : {"a", "b", "c", "d", "e", "f"}) {
                if (check::below(generator, 4) != 0) event.add(name, values[check::below(generator, std::size(values))]);
            }
            std::vector<std::uint64_t> found, expected;
            index.match(event, found);
            std::sort(found.begin(), found.end());
            for (const auto& [key, filter] : all) {
                if (filter->evaluate(event) == Truth::yes) expected.push_back(key);
            }
            CHECK(found == expected);
        }
        for (const auto& [id, filter] : all) CHECK(index.remove(id));
        std::vector<std::uint64_t> found;
        index.match(properties({{"a", number(std::int64_t{1})}}), found);
        CHECK(found.empty() && index.size() == 0);
    }
}
