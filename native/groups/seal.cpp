#include "groups/seal.hpp"

#include <string.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>

#include "frames/sha256.hpp"

namespace antiphon::groups {

namespace {

// From OpenSSL's headers; part of its ABI.
constexpr int kSetNonceBytes = 0x9, kGetTag = 0x10, kSetTag = 0x11;
constexpr int kNonceBytes = 12;
// With one key AES-GCM is used for 2^32 datagrams; then the sender's next one follows from the view's.
constexpr int kTurnBits = 32;
constexpr std::uint64_t kLastCounter = UINT64_MAX - 1;

const tls::OpenSsl& need_openssl() {
    std::string why;
    const tls::OpenSsl* api = tls::openssl(&why);
    if (api == nullptr) throw std::runtime_error("sealed datagrams need OpenSSL 3, which is not here: " + why);
    return *api;
}

void put_number(char* at, std::uint64_t number) {
    for (int i = 0; i < 8; ++i) at[i] = static_cast<char>(number >> (8 * i));
}

void nonce_of(std::uint64_t counter, unsigned char* nonce) {
    std::memset(nonce, 0, kNonceBytes);
    put_number(reinterpret_cast<char*>(nonce) + 4, counter);
}

const unsigned char* bytes_of(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }

int length_of(std::string_view text) { return static_cast<int>(text.size()); }

}  // namespace

// --- keys --------------------------------------------------------------------------------------------

Keyring::State::~State() {
    for (Key& key : keys) explicit_bzero(key.bytes.data(), key.bytes.size());
}

Keyring::Keyring() : api_(need_openssl()), state_(std::make_shared<State>()) {}
Keyring::~Keyring() = default;

std::uint64_t Keyring::name_of(std::string_view key) {
    std::uint64_t name;
    std::memcpy(&name, hmac_sha256(key, "antiphon 1 name of a group's key").data(), sizeof name);
    return name;
}

void Keyring::install(std::string_view key, std::vector<std::uint64_t> senders, Nanos now) {
    if (key.size() != kKeyBytes) throw std::invalid_argument("a key has 32 bytes");
    auto made = std::make_shared<State>();
    std::sort(senders.begin(), senders.end());
    made->senders = std::move(senders);
    Key current{name_of(key), {}, kNever};
    std::memcpy(current.bytes.data(), key.data(), kKeyBytes);
    made->keys.reserve(kMostPrevious + 1);  // never moved: no copy of a key is left behind
    made->keys.push_back(current);
    explicit_bzero(current.bytes.data(), current.bytes.size());
    std::lock_guard lock(mutex_);
    for (const Key& before : state_->keys) {
        if (before.name == made->keys.front().name || made->keys.size() > kMostPrevious) continue;
        if (before.until > now) {
            made->keys.push_back(before);
            made->keys.back().until = std::min(before.until, now + kPrevious);
        }
    }
    state_ = std::move(made);
    version_.fetch_add(1, std::memory_order_release);
}

void Keyring::clear() {
    std::lock_guard lock(mutex_);
    state_ = std::make_shared<State>();
    version_.fetch_add(1, std::memory_order_release);
}

std::shared_ptr<const Keyring::State> Keyring::state() const {
    std::lock_guard lock(mutex_);
    return state_;
}

// --- the cipher --------------------------------------------------------------------------------------

Cipher::Cipher(const tls::OpenSsl& api) : api_(api), context_(api.EVP_CIPHER_CTX_new()) {
    if (context_ == nullptr) throw std::bad_alloc();
}

Cipher::~Cipher() { api_.EVP_CIPHER_CTX_free(context_); }

bool Cipher::use(std::string_view key, std::uint64_t sender, const SealHead& head, bool seal) {
    const std::uint64_t turn = head.counter >> kTurnBits;
    if (usable_ && key_ == head.key && sender_ == sender && turn_ == turn && seals_ == seal) return true;
    usable_ = false;
    char words[16];
    put_number(words, sender);
    put_number(words + 8, turn);
    std::string own = hmac_sha256(key, std::string("antiphon 1 key of a sender").append(words, sizeof words));
    const auto* bytes = reinterpret_cast<const unsigned char*>(own.data());
    const auto begin = seal ? api_.EVP_EncryptInit_ex : api_.EVP_DecryptInit_ex;
    usable_ = begin(context_, api_.EVP_aes_256_gcm(), nullptr, nullptr, nullptr) == 1 &&
              api_.EVP_CIPHER_CTX_ctrl(context_, kSetNonceBytes, kNonceBytes, nullptr) == 1 &&
              begin(context_, nullptr, nullptr, bytes, nullptr) == 1;
    explicit_bzero(own.data(), own.size());
    key_ = head.key;
    sender_ = sender;
    turn_ = turn;
    seals_ = seal;
    return usable_;
}

bool Cipher::seal(std::uint64_t counter, std::string_view clear, std::span<const std::string_view> pieces, char* out) {
    unsigned char nonce[kNonceBytes];
    nonce_of(counter, nonce);
    int done = 0;
    if (api_.EVP_EncryptInit_ex(context_, nullptr, nullptr, nullptr, nonce) != 1) return false;
    if (api_.EVP_EncryptUpdate(context_, nullptr, &done, bytes_of(clear), length_of(clear)) != 1) return false;
    auto* at = reinterpret_cast<unsigned char*>(out);
    for (const std::string_view piece : pieces) {
        if (piece.empty()) continue;
        if (api_.EVP_EncryptUpdate(context_, at, &done, bytes_of(piece), length_of(piece)) != 1) return false;
        at += done;
    }
    if (api_.EVP_EncryptFinal_ex(context_, at, &done) != 1) return false;
    at += done;
    return api_.EVP_CIPHER_CTX_ctrl(context_, kGetTag, kTagBytes, at) == 1;
}

bool Cipher::open(std::uint64_t counter, std::string_view clear, std::string_view sealed, char* out) {
    unsigned char nonce[kNonceBytes], tag[kTagBytes];
    nonce_of(counter, nonce);
    const std::string_view body = sealed.substr(0, sealed.size() - kTagBytes);
    std::memcpy(tag, sealed.data() + body.size(), kTagBytes);
    int done = 0;
    if (api_.EVP_DecryptInit_ex(context_, nullptr, nullptr, nullptr, nonce) != 1) return false;
    if (api_.EVP_DecryptUpdate(context_, nullptr, &done, bytes_of(clear), length_of(clear)) != 1) return false;
    auto* at = reinterpret_cast<unsigned char*>(out);
    if (!body.empty()) {
        if (api_.EVP_DecryptUpdate(context_, at, &done, bytes_of(body), length_of(body)) != 1) return false;
        at += done;
    }
    if (api_.EVP_CIPHER_CTX_ctrl(context_, kSetTag, kTagBytes, tag) != 1) return false;
    return api_.EVP_DecryptFinal_ex(context_, at, &done) == 1;
}

// --- sealing -----------------------------------------------------------------------------------------

Sealer::Sealer(std::shared_ptr<const Keyring> keys, std::uint64_t sender, std::uint64_t begin)
    : keys_(std::move(keys)), sender_(sender), next_(begin), cipher_(keys_->api_) {}

Sealer::Result Sealer::seal(std::string_view clear, std::span<const std::string_view> pieces, char* out,
                            std::size_t& size) {
    const std::uint64_t version = keys_->version_.load(std::memory_order_acquire);
    if (version != version_) {
        state_ = keys_->state();
        version_ = version;
    }
    if (state_->keys.empty()) return Result::no_key;
    if (next_ > kLastCounter) return Result::exhausted;
    const Keyring::Key& key = state_->keys.front();
    // Taken whatever happens: a counter that was tried is not tried again.
    const SealHead head{key.name, next_++};
    if (!cipher_.use({key.bytes.data(), key.bytes.size()}, sender_, head, true)) return Result::failed;
    if (out != clear.data()) std::memmove(out, clear.data(), clear.size());
    std::memcpy(out + clear.size(), &head, sizeof head);
    const std::size_t front = clear.size() + sizeof head;
    if (!cipher_.seal(head.counter, {out, front}, pieces, out + front)) return Result::failed;
    size = front + kTagBytes;
    for (const std::string_view piece : pieces) size += piece.size();
    sealed_.store(sealed_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    return Result::sealed;
}

// --- what has come -----------------------------------------------------------------------------------

ReplayWindow::Seen ReplayWindow::look(std::uint64_t counter) const {
    if (counter > highest_) return Seen::fresh;
    // By words, since those are emptied as a whole: the window is between kWidth - 63 and kWidth wide.
    if (highest_ / 64 - counter / 64 >= kWords) return Seen::too_old;
    return (bits_[counter / 64 % kWords] >> (counter % 64) & 1) != 0 ? Seen::again : Seen::fresh;
}

void ReplayWindow::mark(std::uint64_t counter) {
    if (counter > highest_) {
        const std::uint64_t from = highest_ / 64 + 1, to = counter / 64;
        if (to >= from + kWords) {
            bits_.fill(0);
        } else {
            for (std::uint64_t word = from; word <= to; ++word) bits_[word % kWords] = 0;
        }
        highest_ = counter;
    }
    bits_[counter / 64 % kWords] |= std::uint64_t{1} << (counter % 64);
}

// --- opening -----------------------------------------------------------------------------------------

Opener::Opener(std::shared_ptr<const Keyring> keys) : keys_(std::move(keys)) {}

void Opener::look_at_keys() {
    const std::uint64_t version = keys_->version_.load(std::memory_order_acquire);
    if (version == version_) return;
    state_ = keys_->state();
    version_ = version;
    std::erase_if(senders_, [&](const auto& one) {
        return !std::binary_search(state_->senders.begin(), state_->senders.end(), one.first);
    });
}

Opener::Result Opener::judge(std::string_view datagram, std::size_t clear, std::uint64_t sender, char* out,
                             std::size_t& size, Nanos now) {
    look_at_keys();
    if (datagram.size() < clear + kSealBytes || datagram.size() > INT32_MAX) return Result::malformed;
    SealHead head;
    std::memcpy(&head, datagram.data() + clear, sizeof head);
    const auto key = std::find_if(state_->keys.begin(), state_->keys.end(), [&](const Keyring::Key& one) {
        return one.name == head.key && now < one.until;
    });
    if (key == state_->keys.end()) return Result::unknown_key;
    if (!std::binary_search(state_->senders.begin(), state_->senders.end(), sender)) return Result::stranger;
    auto& known = senders_[sender];
    if (!known) known = std::make_unique<Sender>(keys_->api_);
    switch (known->window.look(head.counter)) {
        case ReplayWindow::Seen::again: return Result::replayed;
        case ReplayWindow::Seen::too_old: return Result::too_old;
        case ReplayWindow::Seen::fresh: break;
    }
    const std::size_t front = clear + sizeof head;
    if (!known->cipher.use({key->bytes.data(), key->bytes.size()}, sender, head, false) ||
        !known->cipher.open(head.counter, datagram.substr(0, front), datagram.substr(front), out)) {
        return Result::forged;
    }
    known->window.mark(head.counter);
    size = datagram.size() - front - kTagBytes;
    return Result::opened;
}

Opener::Result Opener::open(std::string_view datagram, std::size_t clear, std::uint64_t sender, char* out,
                            std::size_t& size, Nanos now) {
    const Result result = judge(datagram, clear, sender, out, size, now);
    auto& count = counts_[static_cast<std::size_t>(result)];
    count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    return result;
}

Opener::Counts Opener::counts() const {
    const auto get = [this](Result one) {
        return counts_[static_cast<std::size_t>(one)].load(std::memory_order_relaxed);
    };
    return {get(Result::opened),   get(Result::malformed), get(Result::unknown_key), get(Result::stranger),
            get(Result::replayed), get(Result::too_old),   get(Result::forged)};
}

}  // namespace antiphon::groups
