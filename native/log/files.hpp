// Open files by path, a bounded number of them: a store has more segments than a process may have
// descriptors.
//
// Whoever uses a file holds it, and a file that is held stays open. So the bound is exceeded by as many
// files as threads are at work with, and as logs wait for their sync: a descriptor is the only one to
// hear for certain that what was written through it got lost.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "log/disk.hpp"

namespace antiphon::log {

class Files {
   public:
    Files(Disk& disk, Access access, std::size_t most) : disk_(disk), access_(access), most_(most) {}

    // Null, with -errno.
    std::shared_ptr<File> get(const std::string& path, int& error);
    // One that was made just now.
    void put(const std::string& path, std::shared_ptr<File> file);
    void forget(const std::string& path);
    std::size_t open() const;
    Disk& disk() const { return disk_; }

   private:
    struct Entry {
        std::string path;
        std::shared_ptr<File> file;
    };
    using Order = std::list<Entry>;

    std::shared_ptr<File> keep(const std::string& path, std::shared_ptr<File> file, Order& closing);

    Disk& disk_;
    const Access access_;
    const std::size_t most_;
    mutable std::mutex mutex_;
    Order order_;  // least recently used first
    std::unordered_map<std::string, Order::iterator> places_;
};

}  // namespace antiphon::log
