#include "log/disk.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/descriptors.hpp"

namespace antiphon::log {

namespace {

class RealFile : public File {
   public:
    explicit RealFile(int fd) : fd_(fd) {}
    RealFile(const RealFile&) = delete;
    ~RealFile() override {
        // A child has closed it already, and the number may be another file's by now.
        if (fork_generation() == generation_) close_file(fd_);
    }

    ssize_t read(void* to, std::size_t bytes, std::uint64_t at) override {
        std::size_t done = 0;
        while (done < bytes) {
            const ssize_t got = pread(fd_, static_cast<char*>(to) + done, bytes - done, static_cast<off_t>(at + done));
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) return -errno;
            if (got == 0) break;
            done += static_cast<std::size_t>(got);
        }
        return static_cast<ssize_t>(done);
    }
    ssize_t write(const void* from, std::size_t bytes, std::uint64_t at) override {
        ssize_t done;
        do done = pwrite(fd_, from, bytes, static_cast<off_t>(at));
        while (done < 0 && errno == EINTR);
        return done < 0 ? -errno : done;
    }
    int sync() override { return fdatasync(fd_) == 0 ? 0 : -errno; }
    int truncate(std::uint64_t bytes) override { return ftruncate(fd_, static_cast<off_t>(bytes)) == 0 ? 0 : -errno; }
    std::int64_t size() override {
        struct stat facts;
        return fstat(fd_, &facts) == 0 ? facts.st_size : -errno;
    }

   private:
    const std::uint32_t generation_ = fork_generation();
    const int fd_;
};

// The holder's number stands in the file, for the message that a second process gets.
std::string read_holder(int fd) {
    char text[32];
    const ssize_t got = pread(fd, text, sizeof text, 0);
    std::string number(text, static_cast<std::size_t>(std::max<ssize_t>(0, got)));
    const std::size_t digits = number.find_first_not_of("0123456789");
    number.resize(std::min(number.size(), digits));
    return number.empty() ? "" : "process " + number;
}

class RealDisk : public Disk {
   public:
    std::shared_ptr<File> open(const std::string& path, Access access, int& error) override {
        int flags = access == Access::read ? O_RDONLY : O_RDWR;
        if (access == Access::create) flags |= O_CREAT | O_EXCL;
        const int fd = open_file(path.c_str(), flags, 0644);
        error = fd < 0 ? -errno : 0;
        return fd < 0 ? nullptr : std::make_shared<RealFile>(fd);
    }
    int sync_directory(const std::string& path) override {
        const int fd = open_file(path.c_str(), O_RDONLY | O_DIRECTORY);
        if (fd < 0) return -errno;
        const int error = fsync(fd) == 0 ? 0 : -errno;
        close_file(fd);
        return error;
    }
    int make_directory(const std::string& path) override { return mkdir(path.c_str(), 0755) == 0 ? 0 : -errno; }
    int rename(const std::string& from, const std::string& to) override {
        return ::rename(from.c_str(), to.c_str()) == 0 ? 0 : -errno;
    }
    int unlink(const std::string& path) override { return ::unlink(path.c_str()) == 0 ? 0 : -errno; }
    int list(const std::string& path, std::vector<std::string>& names) override {
        // A child that is forked off meanwhile keeps this one open: a directory, which harms nobody.
        DIR* directory = opendir(path.c_str());
        if (directory == nullptr) return -errno;
        errno = 0;
        while (const dirent* entry = readdir(directory)) {
            const std::string name = entry->d_name;
            if (name != "." && name != "..") names.push_back(name);
            errno = 0;
        }
        const int error = -errno;
        closedir(directory);
        return error;
    }
    int lock(const std::string& path, std::shared_ptr<void>& held, std::string& holder) override {
        // Of the open file and not of the process: that one is lost when any descriptor of the file is
        // closed. And not flock, which cannot be asked without being taken.
        const int fd = open_file(path.c_str(), O_RDWR | O_CREAT, 0644);
        if (fd < 0) return -errno;
        auto file = std::make_shared<RealFile>(fd);
        struct flock all{};
        all.l_type = F_WRLCK;
        if (fcntl(fd, F_OFD_SETLK, &all) != 0) {
            if (errno != EAGAIN && errno != EACCES) return -errno;
            holder = read_holder(fd);
            return -EWOULDBLOCK;
        }
        const std::string number = std::to_string(getpid()) + "\n";
        if (file->truncate(0) == 0) write_all(*file, number.data(), number.size(), 0);  // only a hint
        // Given back, and not only closed: a child that was forked a moment ago and has not run yet has the
        // descriptor too, and with it the lock. What such a child does later gives nothing back.
        held = std::shared_ptr<void>(file.get(), [file, fd, generation = fork_generation()](void*) {
            struct flock none{};
            none.l_type = F_UNLCK;
            if (fork_generation() == generation) fcntl(fd, F_OFD_SETLK, &none);
        });
        return 0;
    }
    bool locked(const std::string& path) override {
        const int fd = open_file(path.c_str(), O_RDONLY);
        if (fd < 0) return false;
        struct flock all{};
        all.l_type = F_WRLCK;
        const bool taken = fcntl(fd, F_OFD_GETLK, &all) == 0 && all.l_type != F_UNLCK;
        close_file(fd);
        return taken;
    }
};

}  // namespace

Disk& real_disk() {
    static auto* disk = new RealDisk;  // never destroyed: a log thread may still write while the process ends
    return *disk;
}

int write_all(File& file, const void* from, std::size_t bytes, std::uint64_t at) {
    std::size_t done = 0;
    while (done < bytes) {
        const ssize_t wrote = file.write(static_cast<const char*>(from) + done, bytes - done, at + done);
        if (wrote < 0) return static_cast<int>(wrote);
        if (wrote == 0) return -ENOSPC;
        done += static_cast<std::size_t>(wrote);
    }
    return 0;
}

}  // namespace antiphon::log
