#include "bench/raw_log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "base/clock.hpp"

namespace antiphon::bench {
namespace {

[[noreturn]] void raise(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

class Descriptor {
   public:
    Descriptor(const std::string& path, int flags) : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {
        if (fd_ < 0) raise("open");
    }
    Descriptor(const Descriptor&) = delete;
    ~Descriptor() { ::close(fd_); }
    int get() const { return fd_; }

   private:
    int fd_;
};

double since(Nanos began) { return static_cast<double>(now_ns() - began) / kSecond; }

}  // namespace

LogResult raw_log_write(const std::string& path, std::size_t size, double seconds, double interval) {
    if (size == 0 || !std::isfinite(seconds) || seconds < 0) throw std::invalid_argument("give a size and seconds");
    const Descriptor file(path, O_WRONLY | O_CREAT | O_EXCL);
    const std::vector<char> data(size, 'x');
    std::uint64_t bytes = 0;
    const Nanos began = now_ns(), until = began + seconds_to_ns(seconds), pause = seconds_to_ns(interval);
    Nanos synced = began;
    for (Nanos now = began; now < until; now = now_ns()) {
        const ssize_t wrote = ::write(file.get(), data.data(), size);
        if (wrote < 0 && errno != EINTR) raise("write");
        if (wrote > 0) bytes += static_cast<std::uint64_t>(wrote);
        if (now - synced < pause) continue;
        if (::fdatasync(file.get()) != 0) raise("fdatasync");
        synced = now_ns();
    }
    if (::fdatasync(file.get()) != 0) raise("fdatasync");
    const double taken = since(began);
    ::unlink(path.c_str());
    return {bytes, taken};
}

LogResult raw_log_read(const std::string& path) {
    constexpr std::size_t kChunk = std::size_t{1} << 20;
    const Descriptor file(path, O_RDONLY);
    const auto buffer = std::make_unique<char[]>(kChunk);
    std::uint64_t bytes = 0;
    const Nanos began = now_ns();
    while (true) {
        const ssize_t got = ::read(file.get(), buffer.get(), kChunk);
        if (got < 0 && errno != EINTR) raise("read");
        if (got == 0) return {bytes, since(began)};
        if (got > 0) bytes += static_cast<std::uint64_t>(got);
    }
}

}  // namespace antiphon::bench
