// Acknowledgements that come: a task of its own, since whoever delivers messages may be waiting for them.
#pragma once

#include <functional>
#include <memory>

#include "groups/wire.hpp"
#include "node/node.hpp"

namespace antiphon::groups {

class AcknowledgementTask : public Task {
   public:
    using Take = std::function<void(std::uint16_t node, const Acknowledgement&)>;

    AcknowledgementTask(Node& node, std::shared_ptr<Registration> registration, Take take)
        : node_(node), registration_(std::move(registration)), take_(std::move(take)) {
        registration_->queue->begin(slice_);
    }
    ~AcknowledgementTask() override { registration_->queue->end(slice_); }

    bool run_slice(Nanos until) override {
        TaskQueue& queue = *registration_->queue;
        Run run;
        while (queue.pop(run, slice_)) {
            RunCursor cursor(run);
            while (cursor.left() != 0) {
                const char* data;
                std::size_t size;
                cursor.next(data, size);
                Acknowledgement word;
                if (size != sizeof word) continue;
                std::memcpy(&word, data, sizeof word);
                take_(run.source, word);
            }
            node_.finish(run);
            queue.done(slice_);
            if (now_ns() >= until) break;
        }
        return !queue.empty();
    }

   private:
    Node& node_;
    std::shared_ptr<Registration> registration_;
    const Take take_;
    TaskQueue::Slice slice_;
};

}  // namespace antiphon::groups
