// Messages of groups: batches with a head, on a flow that the receiving member has told.
#include <algorithm>

#include "node/put.hpp"

namespace antiphon {

std::shared_ptr<Registration> Node::add_flow(
    std::uint16_t kind, std::uint64_t capacity, std::uint32_t window,
    const std::function<void(const std::shared_ptr<Registration>&)>& prepare) {
    std::shared_ptr<Registration> registration;
    {
        std::lock_guard lock(mutex_);
        registration = make_registration(kind, capacity, WhenFull::block);
        registration->told = true;
        if (window != 0 && window < registration->window) {
            registration->window = window;
            registration->least_charge =
                static_cast<std::uint32_t>(std::max<std::uint64_t>(1, registration->window / capacity));
        }
        prepare(registration);
    }
    if (phase_.load(std::memory_order_acquire) == Phase::running) {
        selector_.post([this, registration] { announce(*registration); });
    }
    return registration;
}

Attempt Node::try_batch(Peer& peer, OutFlow& flow, std::uint32_t session, Message head, const std::uint32_t* lengths,
                        std::size_t count, Message first, Message second, std::size_t& taken) {
    taken = 0;
    if (!sends_allowed()) return {Attempt::Status::closed};
    if (peer.held.load(std::memory_order_seq_cst)) return {Attempt::Status::not_connected};
    if (peer.session.load(std::memory_order_seq_cst) != session) return {Attempt::Status::again};
    const std::uint32_t window = flow.window.load(std::memory_order_acquire);
    const std::uint32_t least = flow.least_charge.load(std::memory_order_relaxed);
    const std::uint32_t max_frame = peer.max_frame.load(std::memory_order_relaxed);
    std::uint64_t most_bytes = max_frame > kHeaderBytes ? max_frame - kHeaderBytes : 0;
    std::uint64_t most_count = count;
    if (window != 0) {
        // A window holds several frames; and no more than there is credit for.
        const std::uint64_t used = flow.in_flight.count(session);
        const std::uint64_t room = std::min<std::uint64_t>(window / 4, window - std::min<std::uint64_t>(used, window));
        most_bytes = std::min<std::uint64_t>(most_bytes, room > kHeaderBytes ? room - kHeaderBytes : 0);
        if (least != 0) most_count = std::min<std::uint64_t>(most_count, room / least);
    }
    std::uint64_t payload = 4 + 4 + head.size, body = 0;
    std::size_t fits = 0;
    // One goes in any case, as far as this is concerned: what does not is then said by what is tried.
    while (fits < count &&
           (fits == 0 || (fits + 1 < most_count && payload + 4 + lengths[fits] <= most_bytes))) {
        payload += 4 + lengths[fits];
        body += lengths[fits];
        ++fits;
    }
    const auto many = static_cast<std::uint32_t>(fits + 1);
    const Attempt attempt =
        put_on(peer, flow, session, kGroupKind, kPacked, payload, many,
               [&](Ring& ring, std::uint64_t position) {
                   ring.write(position, &many, 4);
                   const auto head_size = static_cast<std::uint32_t>(head.size);
                   ring.write(position + 4, &head_size, 4);
                   std::uint64_t at = position + 8;
                   if (fits != 0) ring.write(at, lengths, 4 * fits);
                   at += 4 * fits;
                   ring.write(at, head.data, head.size);
                   at += head.size;
                   const std::size_t before_wrap = std::min<std::size_t>(first.size, body);
                   if (before_wrap != 0) ring.write(at, first.data, before_wrap);
                   if (before_wrap != body) ring.write(at + before_wrap, second.data, body - before_wrap);
               },
               Haste::usual);
    if (attempt.status == Attempt::Status::sent) taken = fits;
    return attempt;
}

Attempt Node::try_word(Peer& peer, OutFlow& flow, std::uint32_t session, Message word) {
    if (!sends_allowed()) return {Attempt::Status::closed};
    if (peer.held.load(std::memory_order_seq_cst)) return {Attempt::Status::not_connected};
    if (peer.session.load(std::memory_order_seq_cst) != session) return {Attempt::Status::again};
    return put_on(peer, flow, session, kGroupKind, 0, word.size, 1,
                  [&](Ring& ring, std::uint64_t position) { ring.write(position, word.data, word.size); },
                  Haste::usual);
}

}  // namespace antiphon
