#include "tls/openssl.hpp"

#include <dlfcn.h>

namespace antiphon::tls {

namespace {

struct Loaded {
    OpenSsl functions;
    std::string missing;

    Loaded() {
        // Never closed: what was loaded stays for the life of the process.
        void* ssl = dlopen("libssl.so.3", RTLD_NOW | RTLD_LOCAL);
        void* crypto = ssl ? dlopen("libcrypto.so.3", RTLD_NOW | RTLD_LOCAL) : nullptr;
        if (ssl == nullptr || crypto == nullptr) {
            const char* why = dlerror();
            missing = why ? why : "libssl.so.3 cannot be loaded";
            return;
        }
        auto find = [&](void* library, const char* name) {
            void* found = dlsym(library, name);
            if (found == nullptr && missing.empty()) missing = std::string("OpenSSL has no ") + name;
            return found;
        };
#define ANTIPHON_FIND_SSL(name, result, arguments) \
    functions.name = reinterpret_cast<result(*) arguments>(find(ssl, #name));
#define ANTIPHON_FIND_CRYPTO(name, result, arguments) \
    functions.name = reinterpret_cast<result(*) arguments>(find(crypto, #name));
        ANTIPHON_SSL_FUNCTIONS(ANTIPHON_FIND_SSL)
        ANTIPHON_CRYPTO_FUNCTIONS(ANTIPHON_FIND_CRYPTO)
#undef ANTIPHON_FIND_SSL
#undef ANTIPHON_FIND_CRYPTO
    }
};

}  // namespace

const OpenSsl* openssl(std::string* why) {
    static const Loaded* const loaded = new Loaded;
    if (loaded->missing.empty()) return &loaded->functions;
    if (why) *why = loaded->missing;
    return nullptr;
}

}  // namespace antiphon::tls
