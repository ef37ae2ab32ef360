// What the log asks of a disk, and nothing else: so that a test can put one under it that forgets,
// refuses and fills up.
//
// Nothing here throws. Numbers below zero are errors: -errno.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace antiphon::log {

// Several threads may read one file while one writes it. The last owner closes it.
class File {
   public:
    virtual ~File() = default;
    // Fewer bytes than asked for: the file ends there.
    virtual ssize_t read(void* to, std::size_t bytes, std::uint64_t at) = 0;
    // May write fewer bytes than asked for; none is an error.
    virtual ssize_t write(const void* from, std::size_t bytes, std::uint64_t at) = 0;
    // What was written is on the disk, with what it takes to read it. Not the file's name: that is the
    // directory's. After an error nobody knows what is there, and a second call that succeeds does not
    // tell: the kernel has given up the pages that it could not write.
    virtual int sync() = 0;
    virtual int truncate(std::uint64_t bytes) = 0;
    virtual std::int64_t size() = 0;
};

enum class Access { read, write, create };  // create: for writing, and it must not be there yet

class Disk {
   public:
    virtual ~Disk() = default;
    // Null, with -errno in `error`.
    virtual std::shared_ptr<File> open(const std::string& path, Access access, int& error) = 0;
    // Names that were made, changed and removed in it are on the disk.
    virtual int sync_directory(const std::string& path) = 0;
    virtual int make_directory(const std::string& path) = 0;  // -EEXIST: something has that name
    virtual int rename(const std::string& from, const std::string& to) = 0;
    virtual int unlink(const std::string& path) = 0;
    virtual int list(const std::string& path, std::vector<std::string>& names) = 0;
    // Nobody else has it while `held` lives. -EWOULDBLOCK: somebody has, and `holder` says who, if it is known.
    virtual int lock(const std::string& path, std::shared_ptr<void>& held, std::string& holder) = 0;
    // Whether somebody has it; changes nothing.
    virtual bool locked(const std::string& path) = 0;
};

// The disk of this machine. Its descriptors are closed in a forked child.
Disk& real_disk();

// All of it or an error; a disk that takes no byte and names no error is out of space.
int write_all(File& file, const void* from, std::size_t bytes, std::uint64_t at);

}  // namespace antiphon::log
