// A disk in memory that can be as bad as a real one: it forgets at a crash, in any order, what was not
// synced; it fails to sync, and afterwards pretends that nothing is left to be synced; it is full; it
// writes less than it was given. One thread at a time.
#pragma once

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "log/disk.hpp"

namespace antiphon::log {

class FakeDisk : public Disk {
   public:
    explicit FakeDisk(std::uint64_t seed) : random_(seed) { nodes_.emplace("/", std::make_shared<Node>()); }

    // How likely, of a thousand.
    int fails_to_sync = 0, fails_to_sync_directories = 0, writes_short = 0;
    // Bytes that still fit; a write that does not writes what does.
    std::uint64_t space = UINT64_MAX;
    // After so many more operations it answers nothing but errors, and does nothing.
    std::uint64_t dies_in = UINT64_MAX;
    std::uint64_t operations = 0, syncs = 0, directory_syncs = 0;
    std::size_t open_files = 0, most_open_files = 0;

    bool dead() const { return dies_in == 0; }

    // The process is gone: the kernel still has what was written.
    void kill() {
        ++life_;
        locks_.clear();
        dies_in = UINT64_MAX;
        open_files = 0;
    }
    // The power is gone.
    void crash() {
        kill();
        for (auto& [path, node] : nodes_) {
            if (node) node->forget(random_);
        }
        // Names whose directory was not synced.
        for (auto& [path, versions] : names_) {
            for (auto& node : versions) {
                if (node) node->forget(random_);
            }
            nodes_[path] = versions[random_() % versions.size()];
        }
        names_.clear();
        // What lies in a directory that is gone is gone.
        for (auto at = nodes_.begin(); at != nodes_.end();) {
            const bool there = at->second && (at->first == "/" || exists(parent(at->first)));
            at = there ? std::next(at) : nodes_.erase(at);
        }
    }

    // For tests that look, or tamper.
    std::string& bytes(const std::string& path) { return nodes_.at(path)->cached; }
    std::vector<std::string> paths() const {
        std::vector<std::string> all;
        for (const auto& [path, node] : nodes_) {
            if (node && !node->directory) all.push_back(path);
        }
        return all;
    }

    std::shared_ptr<File> open(const std::string& path, Access access, int& error) override;
    int sync_directory(const std::string& path) override {
        if (!alive()) return -EIO;
        if (!exists(path)) return -ENOENT;
        ++directory_syncs;
        const bool fails = chance(std::max(fails_to_sync, fails_to_sync_directories));
        for (auto at = names_.begin(); at != names_.end();) {
            const bool settles = parent(at->first) == path && (!fails || chance(500));
            // After a failure the names that did not make it may still do, or be lost: they stay open.
            at = settles ? names_.erase(at) : std::next(at);
        }
        return fails ? -EIO : 0;
    }
    int make_directory(const std::string& path) override {
        if (!alive()) return -EIO;
        if (exists(path)) return -EEXIST;
        if (!exists(parent(path))) return -ENOENT;
        auto node = std::make_shared<Node>();
        node->directory = true;
        set(path, node);
        return 0;
    }
    int rename(const std::string& from, const std::string& to) override {
        if (!alive()) return -EIO;
        if (!exists(from)) return -ENOENT;
        auto node = nodes_[from];
        set(to, node);
        set(from, nullptr);
        return 0;
    }
    int unlink(const std::string& path) override {
        if (!alive()) return -EIO;
        if (!exists(path)) return -ENOENT;
        if (space != UINT64_MAX) space += nodes_[path]->cached.size();
        set(path, nullptr);
        return 0;
    }
    int list(const std::string& path, std::vector<std::string>& names) override {
        if (!alive()) return -EIO;
        if (!exists(path)) return -ENOENT;
        if (!nodes_[path]->directory && path != "/") return -ENOTDIR;
        for (const auto& [name, node] : nodes_) {
            if (node && name != "/" && parent(name) == path) names.push_back(name.substr(name.rfind('/') + 1));
        }
        return 0;
    }
    int lock(const std::string& path, std::shared_ptr<void>& held, std::string& holder) override {
        if (!alive()) return -EIO;
        if (!exists(path)) set(path, std::make_shared<Node>());
        if (!locks_.insert(path).second) {
            holder = "process 1";
            return -EWOULDBLOCK;
        }
        held = std::shared_ptr<void>(nullptr, [this, path, life = life_](void*) {
            if (life == life_) locks_.erase(path);
        });
        return 0;
    }
    bool locked(const std::string& path) override { return locks_.contains(path); }

   private:
    static constexpr std::uint64_t kPage = 512;  // smaller than real ones: more ways to be torn

    struct Node {
        bool directory = false;
        std::string cached, durable;
        // Since the last sync: what each page has been, and how long the file.
        std::map<std::uint64_t, std::vector<std::string>> pages;
        std::vector<std::uint64_t> sizes;

        std::string page(const std::string& from, std::uint64_t number) const {
            const std::uint64_t at = number * kPage;
            return at >= from.size() ? std::string() : from.substr(at, kPage);
        }
        void put(std::string& to, std::uint64_t number, std::string bytes) const {
            bytes.resize(kPage, '\0');
            if (to.size() < (number + 1) * kPage) to.resize((number + 1) * kPage, '\0');
            to.replace(number * kPage, kPage, bytes);
        }
        void changed(std::uint64_t from, std::uint64_t to) {
            sizes.push_back(cached.size());
            if (from == to) return;
            for (std::uint64_t number = from / kPage; number <= (to - 1) / kPage; ++number) {
                pages[number].push_back(page(cached, number));
            }
        }
        // Of a thousand pages so many do not reach the disk. They count as clean all the same.
        void flush(std::mt19937_64& random, std::uint64_t lost) {
            for (auto& [number, versions] : pages) {
                if (random() % 1000 >= lost) put(durable, number, page(cached, number));
            }
            durable.resize(cached.size(), '\0');
            pages.clear();
            sizes.clear();
        }
        void forget(std::mt19937_64& random) {
            if (directory) return;
            std::uint64_t size = durable.size();
            if (!sizes.empty()) {
                const std::uint64_t choice = random() % (sizes.size() + 1);
                if (choice < sizes.size()) size = sizes[choice];
            }
            for (auto& [number, versions] : pages) {
                const std::uint64_t choice = random() % (versions.size() + 1);
                if (choice < versions.size()) put(durable, number, versions[choice]);
            }
            durable.resize(size, '\0');
            cached = durable;
            pages.clear();
            sizes.clear();
        }
    };

    class Handle : public File {
       public:
        Handle(FakeDisk& disk, std::shared_ptr<Node> node) : disk_(disk), node_(std::move(node)), life_(disk.life_) {
            disk_.most_open_files = std::max(disk_.most_open_files, ++disk_.open_files);
        }
        ~Handle() override {
            if (life_ == disk_.life_) --disk_.open_files;
        }
        ssize_t read(void* to, std::size_t bytes, std::uint64_t at) override {
            if (life_ != disk_.life_ || !disk_.alive()) return -EIO;
            if (at >= node_->cached.size()) return 0;
            bytes = std::min<std::size_t>(bytes, node_->cached.size() - at);
            node_->cached.copy(static_cast<char*>(to), bytes, at);
            return static_cast<ssize_t>(bytes);
        }
        ssize_t write(const void* from, std::size_t bytes, std::uint64_t at) override {
            if (life_ != disk_.life_ || !disk_.alive()) return -EIO;
            if (bytes > 1 && disk_.chance(disk_.writes_short)) bytes = 1 + disk_.random_() % (bytes - 1);
            const std::uint64_t size = node_->cached.size();
            if (at + bytes > size && disk_.space != UINT64_MAX) {
                const std::uint64_t grows = std::min(at + bytes - size, disk_.space);
                if (grows == 0 && at >= size) return -ENOSPC;
                bytes = static_cast<std::size_t>(size + grows - at);
                disk_.space -= grows;
            }
            if (node_->cached.size() < at + bytes) node_->cached.resize(at + bytes, '\0');
            node_->cached.replace(at, bytes, static_cast<const char*>(from), bytes);
            node_->changed(at, at + bytes);
            return static_cast<ssize_t>(bytes);
        }
        int sync() override {
            if (life_ != disk_.life_ || !disk_.alive()) return -EIO;
            ++disk_.syncs;
            const bool fails = disk_.chance(disk_.fails_to_sync);
            node_->flush(disk_.random_, fails ? 500 : 0);
            return fails ? -EIO : 0;
        }
        int truncate(std::uint64_t bytes) override {
            if (life_ != disk_.life_ || !disk_.alive()) return -EIO;
            if (disk_.space != UINT64_MAX && bytes < node_->cached.size()) disk_.space += node_->cached.size() - bytes;
            node_->cached.resize(bytes, '\0');
            node_->changed(bytes, bytes);
            return 0;
        }
        std::int64_t size() override {
            if (life_ != disk_.life_ || !disk_.alive()) return -EIO;
            return static_cast<std::int64_t>(node_->cached.size());
        }

       private:
        FakeDisk& disk_;
        const std::shared_ptr<Node> node_;
        const std::uint64_t life_;
    };

    bool alive() {
        ++operations;
        if (dies_in == 0) return false;
        if (dies_in != UINT64_MAX) --dies_in;
        return dies_in != 0;
    }
    bool chance(int of_thousand) { return static_cast<int>(random_() % 1000) < of_thousand; }
    bool exists(const std::string& path) const {
        if (path == "/") return true;
        const auto found = nodes_.find(path);
        return found != nodes_.end() && found->second != nullptr;
    }
    static std::string parent(const std::string& path) {
        const std::size_t slash = path.rfind('/');
        return slash == 0 ? "/" : path.substr(0, slash);
    }
    void set(const std::string& path, std::shared_ptr<Node> node) {
        auto& versions = names_[path];
        if (versions.empty()) versions.push_back(exists(path) ? nodes_[path] : nullptr);
        versions.push_back(node);
        nodes_[path] = std::move(node);
    }

    std::mt19937_64 random_;
    std::map<std::string, std::shared_ptr<Node>> nodes_;  // null: removed
    std::map<std::string, std::vector<std::shared_ptr<Node>>> names_;  // unsynced: what each has been
    std::set<std::string> locks_;
    std::uint64_t life_ = 0;
};

inline std::shared_ptr<File> FakeDisk::open(const std::string& path, Access access, int& error) {
    error = 0;
    if (!alive()) return error = -EIO, nullptr;
    if (exists(path) == (access == Access::create)) {
        return error = access == Access::create ? -EEXIST : -ENOENT, nullptr;
    }
    if (access == Access::create && !exists(parent(path))) return error = -ENOENT, nullptr;
    if (access == Access::create) set(path, std::make_shared<Node>());
    if (nodes_[path]->directory) return error = -EISDIR, nullptr;
    return std::make_shared<Handle>(*this, nodes_[path]);
}

}  // namespace antiphon::log
