// What a delivery does with events that nobody could handle: into the log of dead letters, and what when
// that does not take them.
#include <algorithm>

#include "bindings/delivery.hpp"

namespace antiphon::python {

namespace {

constexpr Nanos kBuryAgain = kSecond;            // after the log of dead letters did not take one; then twice that,
constexpr Nanos kBuryAtLast = 8 * kSecond;      // up to this

// MessagePack: a map's length, a short text, a number.
void put_map(std::string& to, std::uint32_t count) {
    to.push_back(static_cast<char>(0xdf));
    for (int shift = 24; shift >= 0; shift -= 8) to.push_back(static_cast<char>(count >> shift));
}

void put_text(std::string& to, std::string_view text) {
    to.push_back(static_cast<char>(0xdb));
    const auto size = static_cast<std::uint32_t>(text.size());
    for (int shift = 24; shift >= 0; shift -= 8) to.push_back(static_cast<char>(size >> shift));
    to.append(text);
}

void put_number(std::string& to, std::uint64_t number) {
    to.push_back(static_cast<char>(0xcf));
    for (int shift = 56; shift >= 0; shift -= 8) to.push_back(static_cast<char>(number >> shift));
}

// The entries of an encoded map and their number; none of what is no map.
std::string_view entries_of(std::string_view map, std::uint32_t& count) {
    count = 0;
    if (map.empty()) return {};
    const auto byte = [&](std::size_t at) { return std::uint32_t{static_cast<unsigned char>(map[at])}; };
    const std::uint32_t head = byte(0);
    if (head >= 0x80 && head <= 0x8f) {
        count = head & 0x0f;
        return map.substr(1);
    }
    if (head == 0xde && map.size() >= 3) {
        count = byte(1) << 8 | byte(2);
        return map.substr(3);
    }
    if (head == 0xdf && map.size() >= 5) {
        count = byte(1) << 24 | byte(2) << 16 | byte(3) << 8 | byte(4);
        return map.substr(5);
    }
    return {};
}

}  // namespace

// With where it came from among its properties, so that it can be sent there once more.
void Delivery::bury(Item&& item) {
    if (answered(item)) return finish(item);  // while it waited for its turn
    if (!store_ || !dead_) {
        ++counts_.dropped;
        return finish(item);
    }
    if (bury_pause_ != 0 && now_ns() < bury_at_) return unburied_.push_back(std::move(item));
    const std::string_view bytes(item.bytes);
    std::uint32_t count = 0;
    const std::string_view entries = entries_of(bytes.substr(0, item.properties), count);
    std::string properties;
    put_map(properties, count + 3);
    properties.append(entries);
    put_text(properties, "dead.topic");
    put_text(properties, topics_[item.topic].name);
    put_text(properties, "dead.sequence");
    put_number(properties, item.sequence);
    put_text(properties, "dead.attempts");
    put_number(properties, item.attempts);
    log::Block block;
    block.add(bytes.substr(item.properties), properties, item.time_ns, item.source);
    const std::uint64_t token = ++tokens_;
    const auto self = std::static_pointer_cast<Delivery>(shared_from_this());
    if (bury_pause_ != 0) {  // one at a time, until one is taken
        bury_pause_ = std::min(2 * bury_pause_, kBuryAtLast);
        bury_at_ = now_ns() + bury_pause_;
    }
    if (store_->append(dead_, std::move(block), self, token) == log::Put::taken) {
        dying_.emplace(token, std::move(item));
    } else {
        not_buried(std::move(item));
    }
}

void Delivery::not_buried(Item&& item) {
    if (bury_pause_ == 0) {
        bury_pause_ = kBuryAgain;
        bury_at_ = now_ns() + bury_pause_;
    }
    unburied_.push_back(std::move(item));
}

}  // namespace antiphon::python
