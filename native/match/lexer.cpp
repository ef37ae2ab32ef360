#include "match/lexer.hpp"

#include <algorithm>

#include "match/utf8.hpp"

namespace antiphon::match {

namespace {

// Of ASCII only, whatever the locale says.
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool begins_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$'; }
bool continues_name(char c) { return begins_name(c) || is_digit(c) || c == '.'; }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '\f'; }

Keyword keyword_of(std::string_view word) {
    static constexpr std::pair<std::string_view, Keyword> kAll[] = {
        {"AND", Keyword::and_}, {"BETWEEN", Keyword::between}, {"ESCAPE", Keyword::escape}, {"FALSE", Keyword::false_},
        {"IN", Keyword::in},    {"IS", Keyword::is},           {"LIKE", Keyword::like},     {"NOT", Keyword::not_},
        {"NULL", Keyword::null}, {"OR", Keyword::or_},         {"TRUE", Keyword::true_},
    };
    const auto same = [](char a, char b) { return (a >= 'a' && a <= 'z' ? static_cast<char>(a - 'a' + 'A') : a) == b; };
    for (const auto& [text, keyword] : kAll) {
        if (std::equal(word.begin(), word.end(), text.begin(), text.end(), same)) return keyword;
    }
    return Keyword::none;
}

}  // namespace

Token Lexer::take(Token::Kind kind, std::size_t bytes) {
    const Token token{kind, Keyword::none, column_, text_.substr(at_, bytes)};
    at_ += bytes;
    column_ += static_cast<std::uint32_t>(count_characters(token.text));
    return token;
}

// Bytes of the number that stands here; 0: there is none.
std::size_t Lexer::number() const {
    std::size_t at = at_;
    const auto digits = [&] {
        const std::size_t from = at;
        while (at < text_.size() && is_digit(text_[at])) ++at;
        return at - from;
    };
    const std::size_t whole = digits();
    std::size_t fraction = 0;
    if (at < text_.size() && text_[at] == '.') {
        ++at;
        fraction = digits();
    }
    if (whole + fraction == 0) return 0;
    if (at < text_.size() && (text_[at] == 'e' || text_[at] == 'E')) {
        ++at;
        if (at < text_.size() && (text_[at] == '+' || text_[at] == '-')) ++at;
        if (digits() == 0) return 0;
    }
    return at < text_.size() && continues_name(text_[at]) ? 0 : at - at_;
}

// Bytes of the text that stands here; 0: it is not closed.
std::size_t Lexer::quoted() const {
    for (std::size_t at = at_ + 1; at < text_.size(); ++at) {
        if (text_[at] != '\'') continue;
        if (at + 1 == text_.size() || text_[at + 1] != '\'') return at + 1 - at_;
        ++at;  // a doubled one is one
    }
    return 0;
}

Token Lexer::next() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_, ++column_;
    if (at_ == text_.size()) return take(Token::Kind::end, 0);
    const char first = text_[at_];
    const char second = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
    if (begins_name(first)) {
        std::size_t end = at_;
        while (end < text_.size() && continues_name(text_[end])) ++end;
        Token token = take(Token::Kind::name, end - at_);
        token.keyword = keyword_of(token.text);
        if (!token.is(Keyword::none)) token.kind = Token::Kind::keyword;
        return token;
    }
    std::size_t bytes = 0;
    if (is_digit(first) || first == '.') bytes = number();
    if (bytes != 0) return take(Token::Kind::number, bytes);
    if (first == '\'') bytes = quoted();
    if (bytes != 0) return take(Token::Kind::text, bytes);
    switch (first) {
        case '<': return take(Token::Kind::comparison, second == '>' || second == '=' ? 2 : 1);
        case '>': return take(Token::Kind::comparison, second == '=' ? 2 : 1);
        case '=': return take(Token::Kind::comparison, 1);
        case '+': case '-': case '*': case '/': return take(Token::Kind::arithmetic, 1);
        case '(': return take(Token::Kind::open, 1);
        case ')': return take(Token::Kind::close, 1);
        case ',': return take(Token::Kind::comma, 1);
        default: return take(Token::Kind::stray, next_character(text_, at_) - at_);
    }
}

}  // namespace antiphon::match
