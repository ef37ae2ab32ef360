// Numbers and texts as a filter writes them.
#pragma once

#include <string_view>

#include "match/value.hpp"

namespace antiphon::match {

// Of a number's token. Why there is none, for people; null: there is one.
const char* read_number(std::string_view digits, bool minus, Value& value);

// The text of a token in quotes, written to `into`, which has room for it; where it ends there.
char* unquote(std::string_view quoted, char* into);

}  // namespace antiphon::match
