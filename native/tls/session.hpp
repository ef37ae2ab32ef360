// TLS 1.3 on one socket, and what a node's sockets have in common.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tls/openssl.hpp"

namespace antiphon::tls {

// Who we are and whom we trust: a shared secret, or certificates. Never changes; a node whose
// certificates have changed makes another, and connections keep the one they began with.
class Context {
   public:
    struct Files {
        std::string certificate, key, authority;
        bool empty() const { return certificate.empty(); }
    };
    // Throws std::runtime_error with a sentence.
    static std::shared_ptr<Context> with_secret(const std::string& secret);
    static std::shared_ptr<Context> with_certificates(const Files& files);
    ~Context();
    Context(const Context&) = delete;

    bool by_secret() const { return !key_.empty(); }

   private:
    friend class Session;
    friend int use_session(SSL*, const EVP_MD*, const unsigned char**, std::size_t*, SSL_SESSION**);
    friend int find_session(SSL*, const unsigned char*, std::size_t, SSL_SESSION**);
    Context();
    SSL_SESSION* make_session(SSL* ssl) const;

    const OpenSsl& api_;
    SSL_CTX* context_;
    std::string key_;  // of the shared secret
};

// When each of the files was last changed, in nanoseconds; 0 for one that is not there.
std::vector<std::int64_t> changed_at(const Context::Files& files);

// One socket's. Reading and writing may be two threads' work: OpenSSL's object is not made for that,
// so each call takes its lock.
class Session {
   public:
    enum class Step : std::uint8_t { done, wants_read, wants_write, failed, lost };

    Session(std::shared_ptr<Context> context, int fd, bool dialled);
    ~Session();

    Step shake_hands();
    // As recv() and send() on a socket that does not block: -1 with errno, 0 at the end. When transmit
    // says EAGAIN, the same bytes must come first the next time.
    ssize_t receive(void* to, std::size_t room);
    ssize_t transmit(const void* from, std::size_t bytes);
    // Something was read from the socket and not handed out yet: epoll will not tell.
    bool pending();
    std::string error();  // of what failed last

    // After the hand-shake: whether the peer's certificate is for this node, or any. Always, with a
    // shared secret.
    bool names(std::uint16_t node) const;
    std::string named() const;  // for error texts

   private:
    friend int gather(BIO*, const char*, int);
    ssize_t outcome(int result, std::size_t count);
    bool flush();
    void remember_error(int code);

    const OpenSsl& api_;
    const std::shared_ptr<Context> context_;
    std::mutex mutex_;
    SSL* ssl_;
    const int fd_;
    // Records that the socket has not taken yet, from `flushed_` on, and how many bytes of the caller's
    // are in them: those are reported when the last record is gone.
    std::string records_;
    std::size_t flushed_ = 0, owed_ = 0;
    std::uint64_t written_ = 0;  // records with the present key
    std::string error_;
    bool roomy_ = false;  // its buffer for what comes in is a large one
    bool dry_ = false;  // the last read found no whole record
    std::vector<std::string> names_;
};

}  // namespace antiphon::tls
