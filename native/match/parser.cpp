// From text to steps. Operators wait on a stack of our own, so no depth of parentheses costs the machine's.
#include <algorithm>

#include "match/filter.hpp"
#include "match/lexer.hpp"
#include "match/literals.hpp"
#include "match/utf8.hpp"

namespace antiphon::match {

namespace {

// What is expected where. The texts are facts of errors, and part of their sentences.
constexpr char kCondition[] = "a comparison, such as temp > 30 or (site = 'A')";
constexpr char kValue[] = "a property, a 'text', a number, TRUE or FALSE";
constexpr char kNumber[] = "a number or a property";
constexpr char kOperator[] = "one of = <> < <= > >= BETWEEN IN LIKE IS";
constexpr char kEqual[] = "= or <>";

// A property may have any type.
enum class Type : std::uint8_t { any, number, text, boolean };

const char* words(Type type) {
    return type == Type::text ? "text" : type == Type::number ? "a number" : "TRUE and FALSE";
}

// An operator that waits for what stands to the right of it. The later ones bind tighter.
enum class Waiting : std::uint8_t { open, or_, and_, not_, comparison, between_low, between, sum, product, sign };

struct Operator {
    Waiting waiting;
    Op op = Op::property;
    bool negated = false;
    std::uint32_t column = 0;
    std::uint32_t step = 0;  // of the skip before the right side
    std::string_view text = {};
};

// A value that waits for an operator.
struct Operand {
    Type type;
    std::uint32_t column;
    std::uint32_t begin;      // its first step
    bool complete = false;    // a comparison without parentheses: only AND and OR may follow
};

struct Failed {};

class Parser {
   public:
    Parser(std::string_view text, Mistake& mistake) : lexer_(text), mistake_(mistake) {
        code_.texts = std::make_unique<char[]>(text.size());
        room_ = code_.texts.get();
        token_ = lexer_.next();
    }

    Code parse() {
        for (;;) {
            operand();
            while (rest()) {
            }
            if (token_.is(Token::Kind::end)) break;
            infix();
        }
        finish();
        return std::move(code_);
    }

   private:
    // --- what begins a value ---

    // Up to and with the next value.
    void operand() {
        for (;; advance()) {
            if (token_.is(Token::Kind::open)) {
                operators_.push_back({.waiting = Waiting::open, .column = token_.column});
            } else if (token_.is_sign()) {
                operators_.push_back({.waiting = Waiting::sign,
                                      .op = token_.text == "-" ? Op::minus : Op::plus,
                                      .column = token_.column,
                                      .text = token_.text});
            } else if (token_.is(Keyword::not_) && begins_condition()) {
                operators_.push_back({.waiting = Waiting::not_, .op = Op::not_, .column = token_.column});
            } else {
                break;
            }
        }
        if (operands_.size() == kDeepest) {
            fail(token_.column, "this is nested too deeply; 128 values may wait for their operators",
                 "a simpler filter");
        }
        const std::uint32_t begin = size();
        switch (token_.kind) {
            case Token::Kind::name: push(Type::any), emit({.op = Op::property, .at = name(token_.text)}); break;
            case Token::Kind::text: push(Type::text), constant(Value::of(text(token_))); break;
            case Token::Kind::number: {
                const Token number = token_;
                const Value value = signed_number(number);
                push(Type::number), constant(value);
                break;
            }
            default:
                if (token_.is(Keyword::null)) fail(token_.column, "nothing compares to NULL; write IS NULL", wanted());
                if (!token_.is(Keyword::true_) && !token_.is(Keyword::false_)) refuse(token_, wanted());
                push(Type::boolean), constant(Value::of(token_.is(Keyword::true_)));
        }
        operands_.back().begin = begin;
        advance();
    }

    bool begins_condition() const { return operators_.empty() || operators_.back().waiting <= Waiting::not_; }

    // A sign before the digits belongs to them: the smallest integer has no opposite.
    Value signed_number(const Token& digits) {
        Operator sign{.waiting = Waiting::open, .column = digits.column};
        if (!operators_.empty() && operators_.back().waiting == Waiting::sign) {
            sign = operators_.back();
            operators_.pop_back();
        }
        Value value;
        const char* why = read_number(digits.text, sign.op == Op::minus, value);
        if (why != nullptr) fail(sign.column, why, kValue);
        return value;
    }

    // --- what goes on ---

    // Parentheses that close, and conditions on what stands before them. False: none is left.
    bool rest() {
        if (token_.is(Token::Kind::close)) {
            close();
            return true;
        }
        bool negated = false;
        Token first = token_;
        if (token_.is(Keyword::not_)) {
            check_open_for_comparison(first);
            negated = true;
            advance();
            if (!token_.is(Keyword::between) && !token_.is(Keyword::in) && !token_.is(Keyword::like)) {
                refuse(token_, "BETWEEN, IN or LIKE");
            }
        }
        if (token_.is(Keyword::in)) return in(first, negated);
        if (token_.is(Keyword::like)) return like(first, negated);
        if (token_.is(Keyword::is)) return is_null();
        negated_ = negated;
        return false;
    }

    // An operator between two values.
    void infix() {
        const Token token = token_;
        if (token.is(Keyword::and_) || token.is(Keyword::or_)) {
            join(token);
        } else if (token.is(Keyword::between)) {
            begin_comparison(token, Type::number);
            operators_.push_back({.waiting = Waiting::between_low, .op = Op::between, .negated = negated_,
                                  .column = token.column, .text = "BETWEEN"});
        } else if (token.is(Token::Kind::comparison)) {
            check_open_for_comparison(token);
            count_comparison();
            operators_.push_back({.waiting = Waiting::comparison, .op = comparison(token.text), .column = token.column,
                                  .text = token.text});
        } else if (token.is(Token::Kind::arithmetic) && !operands_.back().complete) {
            const bool sum = token.is_sign();
            const Waiting waiting = sum ? Waiting::sum : Waiting::product;
            reduce(waiting);
            operators_.push_back({.waiting = waiting, .op = arithmetic(token.text[0]), .column = token.column,
                                  .text = token.text});
            check_number(operands_.back(), operators_.back());
        } else {
            refuse(token, following());
        }
        advance();
    }

    void join(const Token& token) {
        reduce(Waiting::sum);
        if (token.is(Keyword::and_) && !operators_.empty() && operators_.back().waiting == Waiting::between_low) {
            operators_.back().waiting = Waiting::between;
            return;
        }
        const bool both = token.is(Keyword::and_);
        end_condition(token);
        reduce(both ? Waiting::and_ : Waiting::or_);
        operators_.push_back({.waiting = both ? Waiting::and_ : Waiting::or_,
                              .op = both ? Op::and_ : Op::or_,
                              .step = size()});
        emit({.op = both ? Op::skip_and : Op::skip_or});
    }

    void close() {
        reduce(Waiting::sum);
        check_not_between(token_);
        reduce(Waiting::comparison);
        if (!operators_.empty() && operators_.back().waiting != Waiting::open) end_condition(token_);
        reduce(Waiting::or_);
        if (operators_.empty()) refuse(token_, following());
        operands_.back().column = operators_.back().column;
        operands_.back().complete = false;
        operators_.pop_back();
        advance();
    }

    void finish() {
        end_condition(token_);
        reduce(Waiting::or_);
        if (!operators_.empty()) {
            fail(operators_.back().column, "this ( is not closed; add a )", following());
        }
        split_conditions();
    }

    bool in(const Token& first, bool negated) {
        begin_comparison(first, Type::any);
        advance();
        if (!token_.is(Token::Kind::open)) refuse(token_, "( and a list of texts or numbers");
        std::vector<Value> list;
        do {
            advance();
            list.push_back(item(list));
        } while (token_.is(Token::Kind::comma));
        if (!token_.is(Token::Kind::close)) refuse(token_, ", or )");
        advance();
        const Type type = list.front().is_text() ? Type::text : Type::number;
        const Operand& left = operands_.back();
        if (left.type != Type::any && left.type != type) {
            fail(first.column, std::string("IN looks for ") + words(left.type) + " in a list of " +
                                   (type == Type::text ? "texts" : "numbers"), "values of one type");
        }
        std::sort(list.begin(), list.end(), [](const Value& a, const Value& b) {
            return a.is_text() ? a.view() < b.view() : compare_numbers(a, b) < 0;
        });
        code_.lists.push_back(std::move(list));
        condition({.op = Op::in, .negated = negated, .at = static_cast<std::uint32_t>(code_.lists.size() - 1)});
        return true;
    }

    // Of the list so far, which has one type.
    Value item(const std::vector<Value>& list) {
        const char* expected = list.empty() ? "a 'text' or a number" : list.front().is_text() ? "a 'text'" : "a number";
        const Token sign = token_;
        if (sign.is_sign()) advance();
        const bool number = token_.is(Token::Kind::number) && (list.empty() || list.front().is_number());
        const bool text = token_.is(Token::Kind::text) && !sign.is_sign() && (list.empty() || list.front().is_text());
        if (!number && !text) refuse(token_, sign.is_sign() ? "a number" : expected);
        Value value;
        if (text) {
            value = Value::of(this->text(token_));
        } else if (const char* why = read_number(token_.text, sign.text == "-", value)) {
            fail(sign.column, why, expected);
        }
        advance();
        return value;
    }

    bool like(const Token& first, bool negated) {
        begin_comparison(first, Type::text);
        advance();
        const Token pattern = token_;
        if (!pattern.is(Token::Kind::text)) refuse(pattern, "a pattern in quotes, such as 'A%'");
        advance();
        std::string_view escape;
        if (token_.is(Keyword::escape)) {
            advance();
            if (token_.is(Token::Kind::text)) escape = text(token_);
            const bool one = token_.is(Token::Kind::text) && count_characters(escape) == 1;
            if (!one) refuse(token_, "one character in quotes");
            advance();
        }
        code_.patterns.emplace_back();
        const std::string why = Pattern::read(text(pattern), escape, code_.patterns.back());
        if (!why.empty()) fail(pattern.column, why, "another pattern");
        condition({.op = Op::like, .negated = negated, .at = static_cast<std::uint32_t>(code_.patterns.size() - 1)});
        return true;
    }

    bool is_null() {
        check_open_for_comparison(token_);
        count_comparison();
        advance();
        const bool negated = token_.is(Keyword::not_);
        if (negated) advance();
        if (!token_.is(Keyword::null)) refuse(token_, negated ? "NULL" : "NULL or NOT NULL");
        advance();
        condition({.op = Op::is_null, .negated = negated});
        return true;
    }

    // --- operators that have both sides ---

    // All that bind at least so tightly, down to an open parenthesis.
    void reduce(Waiting least) {
        while (!operators_.empty() && operators_.back().waiting >= least) {
            const Operator op = operators_.back();
            if (op.waiting == Waiting::between_low) return;  // its AND is still to come
            operators_.pop_back();
            switch (op.waiting) {
                case Waiting::sign: sign(op); break;
                case Waiting::sum:
                case Waiting::product: calculate(op); break;
                case Waiting::comparison: compare(op); break;
                case Waiting::between: between(op); break;
                case Waiting::not_: emit({.op = Op::not_}), operands_.back().type = Type::boolean; break;
                default:
                    code_.steps[op.step].at = size() + 1;
                    emit({.op = op.op, .at = op.step + 1});
                    operands_.pop_back();
                    operands_.back().type = Type::boolean;
                    operands_.back().complete = true;
            }
        }
    }

    void sign(const Operator& op) {
        check_number(operands_.back(), op);
        Operand& operand = operands_.back();
        operand.type = Type::number;
        operand.column = op.column;
        if (is_constant(operand.begin, size())) {
            Value& value = code_.constants[code_.steps.back().at];
            if (op.op == Op::minus) value = negate(value);
            return;
        }
        emit({.op = op.op});
    }

    void calculate(const Operator& op) {
        const Operand right = operands_.back();
        operands_.pop_back();
        Operand& left = operands_.back();
        check_number(right, op);
        left.type = Type::number;
        if (is_constant(left.begin, right.begin) && is_constant(right.begin, size())) {
            Value& value = code_.constants[code_.steps[left.begin].at];
            value = match::calculate(op.text[0], value, code_.constants[code_.steps[right.begin].at]);
            code_.steps.pop_back();
            return;
        }
        emit({.op = op.op});
    }

    void compare(const Operator& op) {
        const Type right = operands_.back().type;
        operands_.pop_back();
        const Type left = operands_.back().type;
        const bool orders = op.op != Op::equal && op.op != Op::unequal;
        for (const Type type : {left, right}) {
            if (orders && type != Type::any && type != Type::number) {
                fail(op.column, std::string(op.text) + " does not order " + words(type), kEqual);
            }
        }
        if (left != right && left != Type::any && right != Type::any) {
            fail(op.column,
                 std::string(op.text) + " compares " + words(left) + " with " + words(right) + ", which is never true",
                 "values of one type");
        }
        condition({.op = op.op});
    }

    void between(const Operator& op) {
        for (int i = 0; i < 2; ++i) {
            const Type type = operands_.back().type;
            if (type != Type::any && type != Type::number) {
                fail(op.column, std::string("BETWEEN does not order ") + words(type), kEqual);
            }
            operands_.pop_back();
        }
        condition({.op = Op::between, .negated = op.negated});
    }

    // The value on top has become one.
    void condition(Step step) {
        emit(step);
        operands_.back().type = Type::boolean;
        operands_.back().complete = true;
    }

    // --- checks ---

    void check_number(const Operand& operand, const Operator& op) {
        if (operand.type == Type::any || operand.type == Type::number) return;
        fail(operand.column,
             std::string(op.text) + " does not compute with " + words(operand.type) + "; expected " + kNumber, kNumber);
    }

    // What stands before the token has to be a condition.
    void end_condition(const Token& token) {
        reduce(Waiting::sum);
        check_not_between(token);
        reduce(Waiting::comparison);
        const Operand& last = operands_.back();
        if (last.type == Type::number || last.type == Type::text) refuse(token, kOperator);
        if (last.type == Type::any) count_comparison();
    }

    void check_not_between(const Token& token) {
        if (!operators_.empty() && operators_.back().waiting == Waiting::between_low) refuse(token, "AND");
    }

    // Whether the value on top may be compared: comparisons do not follow each other.
    void check_open_for_comparison(const Token& token) {
        reduce(Waiting::sum);
        const bool compared = !operators_.empty() && operators_.back().waiting >= Waiting::comparison;
        if (compared || operands_.back().complete) refuse(token, following());
    }

    void begin_comparison(const Token& token, Type wanted) {
        check_open_for_comparison(token);
        count_comparison();
        const Type type = operands_.back().type;
        if (type == Type::any || type == wanted) return;
        if (wanted == Type::any && type != Type::boolean) return;
        if (wanted == Type::number) fail(token.column, std::string("BETWEEN does not order ") + words(type), kEqual);
        const char* word = wanted == Type::text ? "LIKE" : "IN";
        fail(token.column, std::string(word) + " does not look at " + words(type), kEqual);
    }

    void count_comparison() {
        if (++comparisons_ > kMostComparisons) {
            fail(operands_.back().column, "more than 64 comparisons; use fewer", "the end");
        }
    }

    // What a value may be where the next one begins.
    const char* wanted() const {
        const auto last = std::find_if(operators_.rbegin(), operators_.rend(),
                                       [](const Operator& op) { return op.waiting != Waiting::open; });
        if (last == operators_.rend() || last->waiting <= Waiting::not_) return kCondition;
        return last->op == Op::equal || last->op == Op::unequal ? kValue : kNumber;
    }

    // What may stand behind the value on top.
    const char* following() {
        reduce(Waiting::sum);
        const bool inside = std::any_of(operators_.begin(), operators_.end(),
                                        [](const Operator& op) { return op.waiting == Waiting::open; });
        const Waiting last = operators_.empty() ? Waiting::open : operators_.back().waiting;
        if (last == Waiting::between_low) return "AND";
        const bool condition = last >= Waiting::comparison || operands_.back().type == Type::boolean;
        if (!condition) return kOperator;
        return inside ? "AND, OR or )" : "AND, OR or the end";
    }

    // --- steps ---

    std::uint32_t size() const { return static_cast<std::uint32_t>(code_.steps.size()); }
    void emit(Step step) { code_.steps.push_back(step); }
    void push(Type type) { operands_.push_back({type, token_.column, 0}); }

    void constant(const Value& value) {
        code_.constants.push_back(value);
        emit({.op = Op::constant, .at = static_cast<std::uint32_t>(code_.constants.size() - 1)});
    }

    bool is_constant(std::uint32_t begin, std::uint32_t end) const {
        return end - begin == 1 && code_.steps[begin].op == Op::constant;
    }

    std::uint32_t name(std::string_view text) {
        const auto known = std::find(code_.names.begin(), code_.names.end(), text);
        if (known == code_.names.end()) {
            code_.names.push_back({room_, text.size()});
            room_ = std::copy(text.begin(), text.end(), room_);
            return static_cast<std::uint32_t>(code_.names.size() - 1);
        }
        return static_cast<std::uint32_t>(known - code_.names.begin());
    }

    std::string_view text(const Token& token) {
        const char* begin = room_;
        room_ = unquote(token.text, room_);
        return {begin, static_cast<std::size_t>(room_ - begin)};
    }

    static Op comparison(std::string_view sign) {
        if (sign == "=") return Op::equal;
        if (sign == "<>") return Op::unequal;
        if (sign == "<") return Op::less;
        if (sign == "<=") return Op::less_equal;
        return sign == ">" ? Op::greater : Op::greater_equal;
    }

    static Op arithmetic(char sign) {
        return sign == '+' ? Op::add : sign == '-' ? Op::subtract : sign == '*' ? Op::multiply : Op::divide;
    }

    // Those that are joined by AND at the top, in their order.
    void split_conditions() {
        std::vector<Span> left{{0, size()}};
        while (!left.empty()) {
            const Span span = left.back();
            left.pop_back();
            const Step& last = code_.steps[span.end - 1];
            if (last.op == Op::and_) {
                left.push_back({last.at, span.end - 1});
                left.push_back({span.begin, last.at - 1});
            } else {
                code_.conditions.push_back(span);
            }
        }
        // TRUE and FALSE are no comparisons, but conditions: the index has a bit for each.
        if (code_.conditions.size() > kMostComparisons) fail(1, "more than 64 conditions; use fewer", "the end");
    }

    // --- mistakes ---

    void advance() { token_ = lexer_.next(); }

    // Says why the token cannot stand where something else should.
    [[noreturn]] void refuse(const Token& token, const char* expected) {
        const char* why = "";
        const std::string_view text = token.text;
        if (token.is(Token::Kind::stray)) {
            if (text == "'") why = "this text is not closed; end it with '";
            if (text == "\"") why = "write text in single quotes";
            if (text == "!") why = "write <> for unequal, and NOT for the opposite of a condition";
            const bool digit = text[0] >= '0' && text[0] <= '9';
            if (digit || text == ".") why = "this is not a number; write 3, -3, 3.5 or 3e5";
        }
        mistake_.found = std::string(text);
        const bool ends = token.is(Token::Kind::end);
        fail(token.column, ends ? std::string("the filter ends; expected ") + expected : why, expected);
    }

    [[noreturn]] void fail(std::uint32_t column, std::string why, const char* expected) {
        mistake_.column = column;
        mistake_.why = std::move(why);
        mistake_.expected = expected;
        throw Failed{};
    }

    Lexer lexer_;
    Mistake& mistake_;
    Token token_{};
    Code code_;
    char* room_ = nullptr;
    std::vector<Operator> operators_;
    std::vector<Operand> operands_;
    std::size_t comparisons_ = 0;
    bool negated_ = false;  // a NOT was read before the BETWEEN that comes
};

}  // namespace

std::shared_ptr<const Filter> Filter::read(std::string_view text, Mistake& mistake) {
    // A character has at most four bytes: what is longer is too long, whatever it is.
    const std::size_t characters = count_characters(text);
    if (characters > kMostCharacters || text.size() > 4 * kMostCharacters) {
        mistake = {kMostCharacters + 1, std::to_string(characters) + " characters; shorten it to 4096", {}, "the end"};
        return nullptr;
    }
    const std::size_t malformed = find_malformed(text);
    if (malformed != text.size()) {
        const auto column = static_cast<std::uint32_t>(count_characters(text.substr(0, malformed)) + 1);
        mistake = {column, "this is not UTF-8", {}, "whole characters"};
        return nullptr;
    }
    try {
        return std::make_shared<const Filter>(Parser(text, mistake).parse());
    } catch (const Failed&) {
        return nullptr;
    }
}

}  // namespace antiphon::match
