// A filter over the properties of events: SQL-92's conditions in the dialect of JMS selectors.
//
// docs/reference/filters.md has the language. Read once, and then asked by any number of threads.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "match/code.hpp"
#include "match/properties.hpp"

namespace antiphon::match {

inline constexpr std::size_t kMostCharacters = 4096;
inline constexpr std::size_t kMostComparisons = 64;
// Values that wait for an operator to the right of them. Parentheses alone cost nothing.
inline constexpr std::size_t kDeepest = 128;

// What is wrong with a text that is no filter.
struct Mistake {
    std::uint32_t column = 0;  // in characters, from 1
    std::string why;           // empty: what was found is not what was expected
    std::string found;
    std::string expected;
};

// Shared with Python by its own count: a foreign one would want the interpreter's lock of whoever lets the
// last of them go, and that is often a thread which must not wait for it.
class Filter : public std::enable_shared_from_this<Filter> {
   public:
    // Null, and what is wrong with it. The text may be anything.
    static std::shared_ptr<const Filter> read(std::string_view text, Mistake& mistake);
    explicit Filter(Code code) : code_(std::move(code)) {}

    // The naive evaluator: the whole expression, as it is written. What the index finds is held against it.
    Truth evaluate(const Properties& properties) const { return to_truth(run({0, size()}, properties)); }
    // Whether that is TRUE; stops at the first condition that is not.
    bool matches(const Properties& properties) const;
    // Of one of code().conditions.
    bool holds(std::size_t condition, const Properties& properties) const {
        return to_truth(run(code_.conditions[condition], properties)) == Truth::yes;
    }
    const Code& code() const { return code_; }

   private:
    std::uint32_t size() const { return static_cast<std::uint32_t>(code_.steps.size()); }
    Value run(Span span, const Properties& properties) const;

    const Code code_;
};

}  // namespace antiphon::match
