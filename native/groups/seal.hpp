// Datagrams that only members of a view can read or make: AES-256-GCM, with a key that came with the view.
//
//   what goes   [clear, the caller's] [SealHead] [sealed body] [tag]
//
// The clear part and the head are readable and cannot be changed: they are under the tag too. The clear part
// names its sender, or whoever opens it knows that otherwise. Every sender
// has a key of its own, made from the view's key, its number and every 2^32 datagrams anew; the nonce is a
// counter that a `Sealer` never takes twice, whatever keys come and go. So no nonce is ever used twice with
// one key, as long as a number belongs to one sealer: members draw theirs at random whenever they join.
//
// A key is the whole group's: it says that a member of the view made a datagram, and which one only as far
// as the members are honest with each other.
//
// Threads: a `Keyring` is for all of them. A `Sealer` is used by one at a time, so is an `Opener`; another
// thread may install keys meanwhile. Counts may be read by anybody.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "tls/openssl.hpp"

namespace antiphon::groups {

inline constexpr std::size_t kKeyBytes = 32;
inline constexpr std::size_t kTagBytes = 16;

struct SealHead {
    std::uint64_t key;      // the name of the view's key: `Keyring::name_of`
    std::uint64_t counter;  // of the sender's datagrams, from 1
};
static_assert(sizeof(SealHead) == 16);

// So much longer is what is sealed.
inline constexpr std::size_t kSealBytes = sizeof(SealHead) + kTagBytes;

// The keys of one group at one member: that of its view, and for a while those of views before.
class Keyring {
   public:
    // Members learn of a view at different times; what those behind still seal with the key before is
    // accepted for so long. A heartbeat tells them within a fraction of that.
    static constexpr Nanos kPrevious = 3 * kSecond;
    // However fast views follow each other.
    static constexpr std::size_t kMostPrevious = 16;

    // Throws std::runtime_error where there is no OpenSSL.
    Keyring();
    ~Keyring();
    Keyring(const Keyring&) = delete;
    Keyring& operator=(const Keyring&) = delete;

    // A view: its key, of `kKeyBytes`, and the numbers of those whose datagrams are accepted from now on.
    void install(std::string_view key, std::vector<std::uint64_t> senders, Nanos now);
    // Not in a view any more: nothing is sealed or opened until the next one.
    void clear();

    static std::uint64_t name_of(std::string_view key);

   private:
    friend class Sealer;
    friend class Opener;

    struct Key {
        std::uint64_t name;
        std::array<char, kKeyBytes> bytes;
        Nanos until;  // accepted before this; the current one for ever
    };
    struct State {
        ~State();
        std::vector<Key> keys;  // the current one is the first
        std::vector<std::uint64_t> senders;  // sorted
    };
    // What holds now. Whoever uses it looks at `version_` first and keeps it while that stays.
    std::shared_ptr<const State> state() const;

    const tls::OpenSsl& api_;
    mutable std::mutex mutex_;  // of state_; held for moments, inside no other
    std::shared_ptr<const State> state_;
    // Written with the mutex after state_ (release), read by sealers and openers (acquire).
    std::atomic<std::uint64_t> version_{1};
};

// A cipher with one key, for either direction.
class Cipher {
   public:
    explicit Cipher(const tls::OpenSsl& api);
    ~Cipher();
    Cipher(const Cipher&) = delete;
    Cipher& operator=(const Cipher&) = delete;

    // For the datagrams of a sender with this and neighbouring counters. Does nothing where it has that already.
    bool use(std::string_view key, std::uint64_t sender, const SealHead& head, bool seal);
    bool seal(std::uint64_t counter, std::string_view clear, std::span<const std::string_view> pieces, char* out);
    bool open(std::uint64_t counter, std::string_view clear, std::string_view sealed, char* out);

   private:
    const tls::OpenSsl& api_;
    tls::EVP_CIPHER_CTX* context_;
    std::uint64_t key_ = 0, sender_ = 0, turn_ = 0;
    bool usable_ = false, seals_ = false;
};

// What one member sends.
class Sealer {
   public:
    enum class Result : std::uint8_t { sealed, no_key, exhausted, failed };

    // `begin`: the first counter; another than 1 only to see what happens at the end of them.
    Sealer(std::shared_ptr<const Keyring> keys, std::uint64_t sender, std::uint64_t begin = 1);

    // Writes clear, head, sealed pieces and tag to `out`, which has room for all pieces and `kSealBytes`.
    // Pieces must not lie in `out`; `clear` may be where it will stand.
    Result seal(std::string_view clear, std::span<const std::string_view> pieces, char* out, std::size_t& size);
    std::uint64_t sealed() const { return sealed_.load(std::memory_order_relaxed); }

   private:
    const std::shared_ptr<const Keyring> keys_;
    const std::uint64_t sender_;
    std::uint64_t next_;
    std::uint64_t version_ = 0;
    std::shared_ptr<const Keyring::State> state_;
    Cipher cipher_;
    std::atomic<std::uint64_t> sealed_{0};  // written by whoever seals
};

// Which counters of one sender have come: about the last `kWidth` of them each; what is before counts as come.
class ReplayWindow {
   public:
    // Two sockets of a receiver are read one after the other, and what waits in one may be thousands behind.
    static constexpr std::uint64_t kWidth = 8192;

    enum class Seen : std::uint8_t { fresh, again, too_old };
    Seen look(std::uint64_t counter) const;
    void mark(std::uint64_t counter);  // one that is fresh

   private:
    static constexpr std::uint64_t kWords = kWidth / 64;
    std::uint64_t highest_ = 0;
    std::array<std::uint64_t, kWords> bits_{};
};

// What comes, of all senders of a view.
class Opener {
   public:
    enum class Result : std::uint8_t { opened, malformed, unknown_key, stranger, replayed, too_old, forged };

    struct Counts {
        std::uint64_t opened, malformed, unknown_key, stranger, replayed, too_old, forged;
    };

    explicit Opener(std::shared_ptr<const Keyring> keys);

    // `datagram` begins with `clear` bytes that are the caller's, and says that it is of `sender`. Its body is
    // written to `out`, which has room for it and may be the place where the sealed one begins; nothing there
    // means anything unless the result is `opened`.
    Result open(std::string_view datagram, std::size_t clear, std::uint64_t sender, char* out, std::size_t& size,
                Nanos now);
    Counts counts() const;

   private:
    // A sender that no view names takes no memory: these are as many as members.
    struct Sender {
        explicit Sender(const tls::OpenSsl& api) : cipher(api) {}
        ReplayWindow window;
        Cipher cipher;
    };
    Result judge(std::string_view datagram, std::size_t clear, std::uint64_t sender, char* out, std::size_t& size,
                 Nanos now);
    void look_at_keys();

    const std::shared_ptr<const Keyring> keys_;
    std::uint64_t version_ = 0;
    std::shared_ptr<const Keyring::State> state_;
    std::map<std::uint64_t, std::unique_ptr<Sender>> senders_;
    // Written by whoever opens.
    std::array<std::atomic<std::uint64_t>, 7> counts_{};
};

}  // namespace antiphon::groups
