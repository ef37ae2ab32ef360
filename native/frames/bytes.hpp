// Writing and reading the small fixed records of control frames.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "frames/layout.hpp"

namespace antiphon {

class ByteWriter {
   public:
    template <typename T>
    ByteWriter& put(T value) {
        static_assert(std::is_trivially_copyable_v<T>);
        const char* at = reinterpret_cast<const char*>(&value);
        bytes_.append(at, sizeof value);
        return *this;
    }
    ByteWriter& raw(std::string_view text) {
        bytes_.append(text);
        return *this;
    }
    // A string behind its u16 length; what does not fit is cut.
    ByteWriter& text(std::string_view text) {
        text = text.substr(0, 1024);
        put(static_cast<std::uint16_t>(text.size()));
        return raw(text);
    }
    const std::string& bytes() const { return bytes_; }

   private:
    std::string bytes_;
};

// Reading past the end yields zeros and clears ok(): the caller asks once, at the end. Bytes that are
// left over are ignored, so that a newer node can append fields.
class ByteReader {
   public:
    explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

    template <typename T>
    T get() {
        T value{};
        if (rest_.size() < sizeof value) {
            ok_ = false;
            rest_ = {};
            return value;
        }
        std::memcpy(&value, rest_.data(), sizeof value);
        rest_.remove_prefix(sizeof value);
        return value;
    }
    std::string raw(std::size_t bytes) {
        if (rest_.size() < bytes) {
            ok_ = false;
            rest_ = {};
            return {};
        }
        std::string out(rest_.substr(0, bytes));
        rest_.remove_prefix(bytes);
        return out;
    }
    std::string text() { return raw(get<std::uint16_t>()); }
    bool ok() const { return ok_; }
    std::size_t left() const { return rest_.size(); }

   private:
    std::string_view rest_;
    bool ok_ = true;
};

inline void append_frame(std::string& to, Control kind, std::string_view payload,
                         std::uint32_t flow = 0) {
    Header header{static_cast<std::uint32_t>(payload.size()), static_cast<std::uint16_t>(kind), 0,
                  flow};
    to.append(reinterpret_cast<const char*>(&header), kHeaderBytes);
    to.append(payload);
}

}  // namespace antiphon
