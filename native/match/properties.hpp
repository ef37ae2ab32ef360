// The properties of one event: names and values that lie in its MessagePack, read without a copy.
#pragma once

#include <cstddef>
#include <string_view>

#include "match/value.hpp"

namespace antiphon::match {

class Properties {
   public:
    static constexpr std::size_t kMost = 64;
    struct Property {
        std::string_view name;
        Value value;
    };

    Properties() {}
    // As an event carries them. What is no map of at most 64 texts to text, 64-bit integers, floats and
    // booleans, and nothing behind it, has no properties.
    explicit Properties(std::string_view encoded) {
        if (!encoded.empty() && !read(encoded)) count_ = 0;
    }

    // The last word on a name counts. False: there are too many.
    bool add(std::string_view name, const Value& value);
    Value find(std::string_view name) const {
        for (std::size_t i = 0; i < count_; ++i) {
            if (all_[i].name == name) return all_[i].value;
        }
        return {};
    }
    const Property* begin() const { return all_; }
    const Property* end() const { return all_ + count_; }
    std::size_t size() const { return count_; }

   private:
    bool read(std::string_view encoded);

    std::size_t count_ = 0;
    union {  // made for every event: what is not used is not touched
        Property all_[kMost];
    };
};

}  // namespace antiphon::match
