#include "tls/session.hpp"

#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

#include "frames/sha256.hpp"

namespace antiphon::tls {

namespace {

// From OpenSSL's headers; part of its ABI.
constexpr int kModeCtrl = 33, kSessionCacheCtrl = 44, kReadAheadCtrl = 41, kMinVersionCtrl = 123;
constexpr long kPartialWrite = 1, kMovingBuffer = 2, kReleaseBuffers = 16;
constexpr long kTls13 = 0x0304;
constexpr std::uint64_t kIgnoreUnexpectedEnd = 1u << 7;
constexpr int kVerifyPeer = 1, kFailWithoutPeer = 2;
constexpr int kErrorWantRead = 2, kErrorWantWrite = 3, kErrorSyscall = 5, kErrorZero = 6;
constexpr int kPem = 1;
constexpr unsigned long kSystemError = 1ul << 31;
constexpr int kSubjectAltName = 85, kUri = 6;
constexpr unsigned char kAes128[] = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256
constexpr char kIdentity[] = "antiphon";
constexpr std::size_t kReadBuffer = 128 << 10;
constexpr std::size_t kGather = 64 << 10;  // what goes to the socket in one call, if there is so much
// AES-GCM is good for 2^24.5 records with one key (RFC 8446, 5.5).
constexpr std::uint64_t kRecordsPerKey = 1 << 23;
constexpr int kUpdateOwnKey = 0;
constexpr int kSourceSink = 0x0400, kFlushCtrl = 11, kNoClose = 0;

// How a certificate names a node, in a URI of its subject's alternative names.
constexpr char kNodeUri[] = "antiphon:node:";

const OpenSsl& need_openssl() {
    std::string why;
    const OpenSsl* api = openssl(&why);
    if (api == nullptr) throw std::runtime_error("TLS needs OpenSSL 3, which is not here: " + why);
    return *api;
}

std::string last_error(const OpenSsl& api) {
    std::string text;
    while (const unsigned long code = api.ERR_get_error()) {
        const char* reason = (code & kSystemError) != 0 ? std::strerror(static_cast<int>(code & ~kSystemError))
                                                        : api.ERR_reason_error_string(code);
        if (reason == nullptr || text.find(reason) != std::string::npos) continue;
        if (!text.empty()) text += ", ";
        text += reason;
    }
    return text.empty() ? "unknown error" : text;
}

long answer_flush(BIO*, int command, long, void*) { return command == kFlushCtrl ? 1 : 0; }

}  // namespace

// Where OpenSSL writes to: records gather here and go to the socket together, in a call that raises no
// signal.
int gather(BIO* bio, const char* data, int size) {
    try {
        static_cast<Session*>(openssl()->BIO_get_data(bio))->records_.append(data, static_cast<std::size_t>(size));
    } catch (const std::bad_alloc&) {
        return -1;  // nothing is thrown through OpenSSL
    }
    return size;
}

SSL_SESSION* Context::make_session(SSL* ssl) const {
    SSL_SESSION* session = api_.SSL_SESSION_new();
    const SSL_CIPHER* cipher = api_.SSL_CIPHER_find(ssl, kAes128);
    if (session != nullptr && cipher != nullptr) {
        api_.SSL_SESSION_set1_master_key(session, reinterpret_cast<const unsigned char*>(key_.data()), key_.size());
        api_.SSL_SESSION_set_cipher(session, cipher);
        api_.SSL_SESSION_set1_id_context(session, reinterpret_cast<const unsigned char*>(kIdentity), sizeof kIdentity - 1);
        api_.SSL_SESSION_set_protocol_version(session, static_cast<int>(kTls13));
    }
    return session;
}

int use_session(SSL* ssl, const EVP_MD*, const unsigned char** id, std::size_t* size, SSL_SESSION** session) {
    const OpenSsl& api = *openssl();
    const auto* context = static_cast<Context*>(api.SSL_CTX_get_ex_data(api.SSL_get_SSL_CTX(ssl), 0));
    *session = context->make_session(ssl);
    *id = reinterpret_cast<const unsigned char*>(kIdentity);
    *size = sizeof kIdentity - 1;
    return *session != nullptr;
}

int find_session(SSL* ssl, const unsigned char* id, std::size_t size, SSL_SESSION** session) {
    const OpenSsl& api = *openssl();
    const auto* context = static_cast<Context*>(api.SSL_CTX_get_ex_data(api.SSL_get_SSL_CTX(ssl), 0));
    *session = nullptr;
    if (size != sizeof kIdentity - 1 || std::memcmp(id, kIdentity, size) != 0) return 1;  // and so, no hand-shake
    *session = context->make_session(ssl);
    return *session != nullptr;
}

Context::Context() : api_(need_openssl()), context_(api_.SSL_CTX_new(api_.TLS_method())) {
    if (context_ == nullptr) throw std::runtime_error("OpenSSL: " + last_error(api_));
    api_.SSL_CTX_ctrl(context_, kMinVersionCtrl, kTls13, nullptr);
    api_.SSL_CTX_ctrl(context_, kModeCtrl, kPartialWrite | kMovingBuffer | kReleaseBuffers, nullptr);
    api_.SSL_CTX_ctrl(context_, kReadAheadCtrl, 1, nullptr);
    api_.SSL_CTX_ctrl(context_, kSessionCacheCtrl, 0, nullptr);
    api_.SSL_CTX_set_num_tickets(context_, 0);
    // A connection may end without TLS's own farewell: the frames have theirs.
    api_.SSL_CTX_set_options(context_, kIgnoreUnexpectedEnd);
    api_.SSL_CTX_set_ciphersuites(context_, "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256");
    // OpenSSL takes a shared key for a session that is resumed, and those belong to a context.
    api_.SSL_CTX_set_session_id_context(context_, reinterpret_cast<const unsigned char*>(kIdentity), sizeof kIdentity - 1);
    api_.SSL_CTX_set_ex_data(context_, 0, this);
}

Context::~Context() { api_.SSL_CTX_free(context_); }

std::shared_ptr<Context> Context::with_secret(const std::string& secret) {
    std::shared_ptr<Context> made(new Context);
    // Not the secret itself: the same one proves itself on loopback, in another way.
    made->key_ = hmac_sha256(secret, "antiphon 1 tls pre-shared key");
    made->api_.SSL_CTX_set_psk_use_session_callback(made->context_, &use_session);
    made->api_.SSL_CTX_set_psk_find_session_callback(made->context_, &find_session);
    // There is no certificate, and nobody to vouch for one.
    made->api_.SSL_CTX_set_verify(made->context_, kVerifyPeer, nullptr);
    return made;
}

std::shared_ptr<Context> Context::with_certificates(const Files& files) {
    std::shared_ptr<Context> made(new Context);
    const OpenSsl& api = made->api_;
    api.ERR_clear_error();
    // A key with a pass phrase is refused: OpenSSL would ask for it on the terminal.
    api.SSL_CTX_set_default_passwd_cb(made->context_, [](char*, int, int, void*) { return -1; });
    if (api.SSL_CTX_use_certificate_chain_file(made->context_, files.certificate.c_str()) != 1) {
        throw std::runtime_error("certificate " + files.certificate + ": " + last_error(api));
    }
    if (api.SSL_CTX_use_PrivateKey_file(made->context_, files.key.c_str(), kPem) != 1 ||
        api.SSL_CTX_check_private_key(made->context_) != 1) {
        throw std::runtime_error("private key " + files.key + ": " + last_error(api));
    }
    if (api.SSL_CTX_load_verify_locations(made->context_, files.authority.c_str(), nullptr) != 1) {
        throw std::runtime_error("authority " + files.authority + ": " + last_error(api));
    }
    api.SSL_CTX_set_verify(made->context_, kVerifyPeer | kFailWithoutPeer, nullptr);
    return made;
}

std::vector<std::int64_t> changed_at(const Context::Files& files) {
    std::vector<std::int64_t> times;
    for (const std::string& path : {files.certificate, files.key, files.authority}) {
        struct stat facts;
        const bool there = stat(path.c_str(), &facts) == 0;
        times.push_back(there ? facts.st_mtim.tv_sec * 1'000'000'000 + facts.st_mtim.tv_nsec : 0);
    }
    return times;
}

Session::Session(std::shared_ptr<Context> context, int fd, bool dialled)
    : api_(context->api_), context_(std::move(context)), ssl_(api_.SSL_new(context_->context_)), fd_(fd) {
    static const BIO_METHOD* const method = [&] {
        BIO_METHOD* made = api_.BIO_meth_new(kSourceSink, "antiphon");
        if (made) {
            api_.BIO_meth_set_write(made, &gather);
            api_.BIO_meth_set_ctrl(made, &answer_flush);
        }
        return made;
    }();
    BIO* in = api_.BIO_new_socket(fd, kNoClose);
    BIO* out = method ? api_.BIO_new(method) : nullptr;
    if (ssl_ == nullptr || in == nullptr || out == nullptr) {
        const std::string error = last_error(api_);
        if (in) api_.BIO_free(in);
        if (out) api_.BIO_free(out);
        if (ssl_) api_.SSL_free(ssl_);
        throw std::runtime_error("OpenSSL: " + error);
    }
    api_.BIO_set_data(out, this);
    api_.BIO_set_init(out, 1);
    api_.SSL_set_bio(ssl_, in, out);
    if (dialled) {
        api_.SSL_set_connect_state(ssl_);
    } else {
        api_.SSL_set_accept_state(ssl_);
    }
}

Session::~Session() { api_.SSL_free(ssl_); }

void Session::remember_error(int code) {
    if (code == kErrorSyscall) {
        error_ = errno != 0 ? std::strerror(errno) : "the peer closed the connection";
    } else if (const long verify = api_.SSL_get_verify_result(ssl_); verify != 0 && !context_->by_secret()) {
        error_ = std::string("its certificate: ") + api_.X509_verify_cert_error_string(verify);
        api_.ERR_clear_error();
    } else {
        error_ = last_error(api_);
    }
}

// True when the socket has taken everything; else -1's errno.
bool Session::flush() {
    while (flushed_ < records_.size()) {
        const ssize_t sent =
            send(fd_, records_.data() + flushed_, records_.size() - flushed_, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return false;
        flushed_ += static_cast<std::size_t>(sent);
    }
    std::string().swap(records_);  // most connections are idle
    flushed_ = 0;
    return true;
}

Session::Step Session::shake_hands() {
    std::lock_guard lock(mutex_);
    api_.ERR_clear_error();
    errno = 0;
    const int result = api_.SSL_do_handshake(ssl_);
    const int error = errno;
    // An alert as well: the other side is to know why.
    const bool sent = !records_.empty();
    const bool flushed = flush();
    if (!flushed && errno == EAGAIN && (result == 1 || api_.SSL_get_error(ssl_, result) == kErrorWantRead)) {
        return Step::wants_write;
    }
    errno = error;
    if (sent && !roomy_) {
        // Who has got an answer has said hello, whole: the next records may come many at a time. All that
        // strangers can have before that is a buffer for one.
        api_.SSL_set_default_read_buffer_len(ssl_, kReadBuffer);
        roomy_ = true;
    }
    if (result != 1) {
        const int code = api_.SSL_get_error(ssl_, result);
        if (code == kErrorWantRead) return Step::wants_read;
        if (code == kErrorZero || code == kErrorSyscall) {
            error_ = errno != 0 ? std::strerror(errno) : "the peer closed the connection; it may not speak TLS";
            return Step::lost;
        }
        remember_error(code);
        return Step::failed;
    }
    if (context_->by_secret()) {
        // Proven by the key itself; anything else would not have got this far, but this is cheap.
        if (api_.SSL_session_reused(ssl_) == 1) return Step::done;
        error_ = "the shared secret was not used";
        return Step::failed;
    }
    names_.clear();  // if the last record did not go out at once, this is the second time
    if (X509* certificate = api_.SSL_get1_peer_certificate(ssl_)) {
        if (void* found = api_.X509_get_ext_d2i(certificate, kSubjectAltName, nullptr, nullptr)) {
            struct GeneralName {
                int type;
                void* value;
            };
            for (int i = 0; i < api_.OPENSSL_sk_num(found); ++i) {
                const auto* name = static_cast<const GeneralName*>(api_.OPENSSL_sk_value(found, i));
                if (name->type != kUri) continue;
                names_.emplace_back(reinterpret_cast<const char*>(api_.ASN1_STRING_get0_data(name->value)),
                                    static_cast<std::size_t>(api_.ASN1_STRING_length(name->value)));
            }
            api_.GENERAL_NAMES_free(found);
        }
        api_.X509_free(certificate);
    }
    return Step::done;
}

ssize_t Session::outcome(int result, std::size_t count) {
    if (result == 1) return static_cast<ssize_t>(count);
    const int code = api_.SSL_get_error(ssl_, result);
    if (code == kErrorWantRead || code == kErrorWantWrite) {
        errno = EAGAIN;
        return -1;
    }
    if (code == kErrorZero) return 0;
    const int error = errno;
    remember_error(code);
    if (code == kErrorSyscall && error == 0) return 0;
    errno = code == kErrorSyscall ? error : EPROTO;
    return -1;
}

ssize_t Session::receive(void* to, std::size_t room) {
    std::lock_guard lock(mutex_);
    api_.ERR_clear_error();
    errno = 0;
    std::size_t count = 0;
    const int result = api_.SSL_read_ex(ssl_, to, room, &count);
    dry_ = result != 1;
    const ssize_t got = outcome(result, count);
    if (owed_ == 0 && !records_.empty()) {
        // Its answer to a new key of the other side, or an alert. What is left goes with what comes next.
        const int error = errno;
        flush();
        errno = error;
    }
    return got;
}

ssize_t Session::transmit(const void* from, std::size_t bytes) {
    std::lock_guard lock(mutex_);
    if (!flush()) return -1;
    if (owed_ != 0) return static_cast<ssize_t>(std::min(std::exchange(owed_, 0), bytes));
    bytes = std::min(bytes, kGather);
    std::size_t done = 0;
    while (done < bytes) {
        api_.ERR_clear_error();
        errno = 0;
        std::size_t count = 0;
        if (++written_ % kRecordsPerKey == 0) api_.SSL_key_update(ssl_, kUpdateOwnKey);
        const int result = api_.SSL_write_ex(ssl_, static_cast<const char*>(from) + done, bytes - done, &count);
        if (result != 1) {
            const ssize_t failed = outcome(result, count);
            if (failed == 0) errno = EPIPE;  // as send() would say it
            // Nothing is waited for here: what is written, gathers. The other side has broken off a change
            // of keys.
            if (errno == EAGAIN) {
                error_ = "the peer left a change of keys half done";
                errno = EPROTO;
            }
            return -1;
        }
        done += count;
    }
    if (flush()) return static_cast<ssize_t>(done);
    if (errno == EAGAIN) owed_ = done;
    return -1;
}

bool Session::pending() {
    std::lock_guard lock(mutex_);
    // OpenSSL also says so of a part of a record, and then there is nothing to be had before the rest.
    return !dry_ && api_.SSL_has_pending(ssl_) == 1;
}

std::string Session::error() {
    std::lock_guard lock(mutex_);
    return error_;
}

bool Session::names(std::uint16_t node) const {
    if (context_->by_secret()) return true;
    for (const std::string& name : names_) {
        if (name == kNodeUri + std::to_string(node) || name == std::string(kNodeUri) + "*") return true;
    }
    return false;
}

std::string Session::named() const {
    std::string all;
    for (const std::string& name : names_) {
        if (name.rfind(kNodeUri, 0) != 0) continue;
        all += (all.empty() ? "" : ", ") + name;
    }
    return all.empty() ? "no node" : all;
}

}  // namespace antiphon::tls
