// The words of a filter, from left to right.
#pragma once

#include <cstdint>
#include <string_view>

namespace antiphon::match {

enum class Keyword : std::uint8_t {
    none, and_, between, escape, false_, in, is, like, not_, null, or_, true_,
};

struct Token {
    enum class Kind : std::uint8_t {
        end, name, keyword, number, text, comparison, arithmetic, open, close, comma, stray,
    };

    Kind kind;
    Keyword keyword;  // none, unless it is one
    std::uint32_t column;  // of its first character, from 1
    std::string_view text;  // as it was written; a text with its quotes

    bool is(Keyword wanted) const { return keyword == wanted; }
    bool is(Kind wanted) const { return kind == wanted; }
    bool is_sign() const { return is(Kind::arithmetic) && (text == "+" || text == "-"); }
};

class Lexer {
   public:
    // Of well-formed UTF-8.
    explicit Lexer(std::string_view text) : text_(text) {}
    // Behind the last one it is the end, again and again. What is nothing is one stray character: the
    // first one of a text that is not closed, or of digits that are no number.
    Token next();

   private:
    Token take(Token::Kind kind, std::size_t bytes);
    std::size_t number() const;
    std::size_t quoted() const;

    std::string_view text_;
    std::size_t at_ = 0;
    std::uint32_t column_ = 1;
};

}  // namespace antiphon::match
