// OpenSSL 3, loaded when something first needs it. Its headers are not needed to build, and a program
// without TLS and sealed datagrams needs no OpenSSL at all. The names and the numbers below are part of its stable ABI.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace antiphon::tls {

struct SSL;
struct SSL_CTX;
struct SSL_SESSION;
struct SSL_CIPHER;
struct SSL_METHOD;
struct X509;
struct EVP_MD;
struct EVP_CIPHER;
struct EVP_CIPHER_CTX;
struct ENGINE;
struct BIO;
struct BIO_METHOD;

using UseSession = int (*)(SSL*, const EVP_MD*, const unsigned char**, std::size_t*, SSL_SESSION**);
using FindSession = int (*)(SSL*, const unsigned char*, std::size_t, SSL_SESSION**);
using Verify = int (*)(int, void*);

// name, result, arguments
#define ANTIPHON_SSL_FUNCTIONS(F)                                                          \
    F(TLS_method, const SSL_METHOD*, ())                                                   \
    F(SSL_CTX_new, SSL_CTX*, (const SSL_METHOD*))                                          \
    F(SSL_CTX_free, void, (SSL_CTX*))                                                      \
    F(SSL_CTX_ctrl, long, (SSL_CTX*, int, long, void*))                                    \
    F(SSL_CTX_set_options, std::uint64_t, (SSL_CTX*, std::uint64_t))                       \
    F(SSL_CTX_set_ciphersuites, int, (SSL_CTX*, const char*))                              \
    F(SSL_CTX_set_session_id_context, int, (SSL_CTX*, const unsigned char*, unsigned))     \
    F(SSL_CTX_set_num_tickets, int, (SSL_CTX*, std::size_t))                               \
    F(SSL_CTX_set_psk_use_session_callback, void, (SSL_CTX*, UseSession))                  \
    F(SSL_CTX_set_psk_find_session_callback, void, (SSL_CTX*, FindSession))                \
    F(SSL_CTX_set_default_passwd_cb, void, (SSL_CTX*, int (*)(char*, int, int, void*)))    \
    F(SSL_CTX_use_certificate_chain_file, int, (SSL_CTX*, const char*))                    \
    F(SSL_CTX_use_PrivateKey_file, int, (SSL_CTX*, const char*, int))                      \
    F(SSL_CTX_check_private_key, int, (const SSL_CTX*))                                    \
    F(SSL_CTX_load_verify_locations, int, (SSL_CTX*, const char*, const char*))            \
    F(SSL_CTX_set_verify, void, (SSL_CTX*, int, Verify))                                   \
    F(SSL_CTX_set_ex_data, int, (SSL_CTX*, int, void*))                                    \
    F(SSL_CTX_get_ex_data, void*, (const SSL_CTX*, int))                                   \
    F(SSL_get_SSL_CTX, SSL_CTX*, (const SSL*))                                             \
    F(SSL_new, SSL*, (SSL_CTX*))                                                           \
    F(SSL_free, void, (SSL*))                                                              \
    F(SSL_set_bio, void, (SSL*, BIO*, BIO*))                                               \
    F(SSL_key_update, int, (SSL*, int))                                                    \
    F(SSL_set_connect_state, void, (SSL*))                                                 \
    F(SSL_set_accept_state, void, (SSL*))                                                  \
    F(SSL_set_default_read_buffer_len, void, (SSL*, std::size_t))                          \
    F(SSL_do_handshake, int, (SSL*))                                                       \
    F(SSL_read_ex, int, (SSL*, void*, std::size_t, std::size_t*))                          \
    F(SSL_write_ex, int, (SSL*, const void*, std::size_t, std::size_t*))                   \
    F(SSL_get_error, int, (const SSL*, int))                                               \
    F(SSL_has_pending, int, (const SSL*))                                                  \
    F(SSL_session_reused, int, (const SSL*))                                               \
    F(SSL_get_verify_result, long, (const SSL*))                                           \
    F(SSL_get1_peer_certificate, X509*, (const SSL*))                                      \
    F(SSL_CIPHER_find, const SSL_CIPHER*, (SSL*, const unsigned char*))                    \
    F(SSL_SESSION_new, SSL_SESSION*, ())                                                   \
    F(SSL_SESSION_set1_master_key, int, (SSL_SESSION*, const unsigned char*, std::size_t)) \
    F(SSL_SESSION_set1_id_context, int, (SSL_SESSION*, const unsigned char*, unsigned))    \
    F(SSL_SESSION_set_cipher, int, (SSL_SESSION*, const SSL_CIPHER*))                      \
    F(SSL_SESSION_set_protocol_version, int, (SSL_SESSION*, int))
#define ANTIPHON_CRYPTO_FUNCTIONS(F)                                     \
    F(BIO_new, BIO*, (const BIO_METHOD*))                                \
    F(BIO_new_socket, BIO*, (int, int))                                  \
    F(BIO_free, int, (BIO*))                                             \
    F(BIO_meth_new, BIO_METHOD*, (int, const char*))                     \
    F(BIO_meth_set_write, int, (BIO_METHOD*, int (*)(BIO*, const char*, int))) \
    F(BIO_meth_set_ctrl, int, (BIO_METHOD*, long (*)(BIO*, int, long, void*))) \
    F(BIO_set_data, void, (BIO*, void*))                                 \
    F(BIO_get_data, void*, (BIO*))                                       \
    F(BIO_set_init, void, (BIO*, int))                                   \
    F(ERR_get_error, unsigned long, ())                                  \
    F(ERR_clear_error, void, ())                                         \
    F(ERR_error_string_n, void, (unsigned long, char*, std::size_t))     \
    F(ERR_reason_error_string, const char*, (unsigned long))             \
    F(X509_free, void, (X509*))                                          \
    F(X509_get_ext_d2i, void*, (const X509*, int, int*, int*))           \
    F(X509_verify_cert_error_string, const char*, (long))                \
    F(OPENSSL_sk_num, int, (const void*))                                \
    F(OPENSSL_sk_value, void*, (const void*, int))                       \
    F(GENERAL_NAMES_free, void, (void*))                                 \
    F(ASN1_STRING_get0_data, const unsigned char*, (const void*))        \
    F(ASN1_STRING_length, int, (const void*))                            \
    F(EVP_CIPHER_CTX_new, EVP_CIPHER_CTX*, ())                           \
    F(EVP_CIPHER_CTX_free, void, (EVP_CIPHER_CTX*))                      \
    F(EVP_CIPHER_CTX_ctrl, int, (EVP_CIPHER_CTX*, int, int, void*))      \
    F(EVP_aes_256_gcm, const EVP_CIPHER*, ())                            \
    F(EVP_EncryptInit_ex, int, (EVP_CIPHER_CTX*, const EVP_CIPHER*, ENGINE*, const unsigned char*, const unsigned char*)) \
    F(EVP_EncryptUpdate, int, (EVP_CIPHER_CTX*, unsigned char*, int*, const unsigned char*, int)) \
    F(EVP_EncryptFinal_ex, int, (EVP_CIPHER_CTX*, unsigned char*, int*)) \
    F(EVP_DecryptInit_ex, int, (EVP_CIPHER_CTX*, const EVP_CIPHER*, ENGINE*, const unsigned char*, const unsigned char*)) \
    F(EVP_DecryptUpdate, int, (EVP_CIPHER_CTX*, unsigned char*, int*, const unsigned char*, int)) \
    F(EVP_DecryptFinal_ex, int, (EVP_CIPHER_CTX*, unsigned char*, int*))

struct OpenSsl {
#define ANTIPHON_DECLARE(name, result, arguments) result(*name) arguments = nullptr;
    ANTIPHON_SSL_FUNCTIONS(ANTIPHON_DECLARE)
    ANTIPHON_CRYPTO_FUNCTIONS(ANTIPHON_DECLARE)
#undef ANTIPHON_DECLARE
};

// Null, with the reason, when this machine has no OpenSSL 3.
const OpenSsl* openssl(std::string* why = nullptr);

}  // namespace antiphon::tls
