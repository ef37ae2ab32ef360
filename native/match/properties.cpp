#include "match/properties.hpp"

#include <bit>
#include <cstring>
#include <type_traits>

namespace antiphon::match {

namespace {

// Walks MessagePack; every step is false where the bytes end too soon, or are something else.
class Reader {
   public:
    explicit Reader(std::string_view bytes) : bytes_(bytes) {}
    bool at_end() const { return bytes_.empty(); }

    bool map(std::size_t& count) {
        std::uint8_t first;
        if (!byte(first)) return false;
        if (first >> 4 == 0x8) {
            count = first & 0x0F;
            return true;
        }
        return (first == 0xDE && number<std::uint16_t>(count)) || (first == 0xDF && number<std::uint32_t>(count));
    }

    bool name(std::string_view& text) {
        std::uint8_t first;
        return byte(first) && this->text(first, text);
    }

    bool value(Value& value) {
        std::uint8_t first;
        if (!byte(first)) return false;
        if (first < 0x80 || first >= 0xE0) {
            value = Value::of(static_cast<std::int64_t>(static_cast<std::int8_t>(first)));
            return true;
        }
        std::string_view text;
        switch (first) {
            case 0xC2: value = Value::of(false); return true;
            case 0xC3: value = Value::of(true); return true;
            case 0xCA: return real<std::uint32_t, float>(value);
            case 0xCB: return real<std::uint64_t, double>(value);
            case 0xCC: return integer<std::uint8_t>(value);
            case 0xCD: return integer<std::uint16_t>(value);
            case 0xCE: return integer<std::uint32_t>(value);
            case 0xCF: return integer<std::uint64_t>(value) && value.integer >= 0;
            case 0xD0: return integer<std::int8_t>(value);
            case 0xD1: return integer<std::int16_t>(value);
            case 0xD2: return integer<std::int32_t>(value);
            case 0xD3: return integer<std::int64_t>(value);
            default:
                if (!this->text(first, text)) return false;
                value = Value::of(text);
                return true;
        }
    }

   private:
    bool byte(std::uint8_t& value) { return number<std::uint8_t>(value); }

    template <typename Coded, typename Wanted>
    bool number(Wanted& value) {
        if (bytes_.size() < sizeof(Coded)) return false;
        std::make_unsigned_t<Coded> found;
        std::memcpy(&found, bytes_.data(), sizeof(Coded));
        bytes_.remove_prefix(sizeof(Coded));
        // MessagePack has the largest byte first.
        if constexpr (sizeof(Coded) == 2) found = __builtin_bswap16(found);
        if constexpr (sizeof(Coded) == 4) found = __builtin_bswap32(found);
        if constexpr (sizeof(Coded) == 8) found = __builtin_bswap64(found);
        value = static_cast<Wanted>(static_cast<Coded>(found));
        return true;
    }

    template <typename Coded>
    bool integer(Value& value) {
        std::int64_t found;
        if (!number<Coded>(found)) return false;
        value = Value::of(found);
        return true;
    }

    template <typename Coded, typename Float>
    bool real(Value& value) {
        Coded found;
        if (!number<Coded>(found)) return false;
        value = Value::of(static_cast<double>(std::bit_cast<Float>(found)));
        return true;
    }

    bool text(std::uint8_t first, std::string_view& text) {
        std::size_t size = first & 0x1F;
        const bool fits = first >> 5 == 0x5 || (first == 0xD9 && number<std::uint8_t>(size)) ||
                          (first == 0xDA && number<std::uint16_t>(size)) ||
                          (first == 0xDB && number<std::uint32_t>(size));
        if (!fits || size > bytes_.size()) return false;
        text = bytes_.substr(0, size);
        bytes_.remove_prefix(size);
        return true;
    }

    std::string_view bytes_;
};
static_assert(std::endian::native == std::endian::little);

}  // namespace

bool Properties::add(std::string_view name, const Value& value) {
    for (std::size_t i = 0; i < count_; ++i) {
        if (all_[i].name == name) {
            all_[i].value = value;
            return true;
        }
    }
    if (count_ == kMost) return false;
    all_[count_++] = {name, value};
    return true;
}

bool Properties::read(std::string_view encoded) {
    Reader reader(encoded);
    std::size_t left;
    if (!reader.map(left)) return false;
    for (; left != 0; --left) {
        std::string_view name;
        Value value;
        if (!reader.name(name) || !reader.value(value) || !add(name, value)) return false;
    }
    return reader.at_end();
}

}  // namespace antiphon::match
