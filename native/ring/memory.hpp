// Memory for a ring, mapped twice in a row so that every region of it is contiguous.
#pragma once

#include <cstddef>

namespace antiphon {

class RingMemory {
   public:
    // Throws std::system_error when the kernel refuses the mapping. `bytes` is a power of two and a
    // multiple of the page size.
    explicit RingMemory(std::size_t bytes);
    ~RingMemory();
    RingMemory(const RingMemory&) = delete;
    RingMemory& operator=(const RingMemory&) = delete;

    char* data() const { return base_; }

    // Gives the pages back to the kernel; they read as zeros afterwards.
    void forget();
    // The addresses too, until map(), which throws as the constructor does. Nobody may touch data() meanwhile.
    void unmap();
    void map();
    bool mapped() const { return base_ != nullptr; }

#if defined(ANTIPHON_PLAIN_RING)
    // ThreadSanitizer keys its shadow by address and cannot see a race through an alias, so its
    // builds use a ring without the mirror and copy in two parts at the end.
    static constexpr bool mirrored = false;
#else
    static constexpr bool mirrored = true;
#endif

   private:
    char* base_ = nullptr;
    const std::size_t bytes_;
};

}  // namespace antiphon
