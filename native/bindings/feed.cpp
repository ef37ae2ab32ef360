#include "bindings/feed.hpp"

#include <algorithm>
#include <cstring>

#include "bindings/answer.hpp"

namespace antiphon::python {

HeldRun::~HeldRun() {
    Feed& owner = *feed;
    if (owner.node_->forked()) return;
    std::erase(owner.out_, this);
    owner.node_->finish(run);
    barriers.clear();
    owner.pass_barriers();
}

Held::~Held() {
    if (!run_ || run_->feed->node_->forked()) return;
    // What cannot be told at once is not told at all: this may be any thread.
    if (!unsent_) fail(std::string("Cancelled") + '\0' + "its coroutine never ended");
    drop();
}

void Held::drop() {
    if (unsent_) run_->feed->node_->lost_answer();
    unsent_.reset();
    handled();
}

std::optional<bool> Held::finish(Reference result) {
    if (!run_ || unsent_) return true;
    Feed& feed = *run_->feed;
    std::unique_ptr<Answer> answer = new_answer();
    if (answer && !answer->encode(std::move(result), feed.kind_of_.get(), feed.encode_.get())) return {};
    return end(std::move(answer));
}

bool Held::fail(std::string told) {
    if (!run_ || unsent_) return true;
    std::unique_ptr<Answer> answer = new_answer();
    if (answer) answer->fail(std::move(told));
    return end(std::move(answer));
}

bool Held::fail(PyObject* exception) {
    if (run_) ++run_->feed->failed_;
    return fail(describe(exception));
}

std::unique_ptr<Answer> Held::new_answer() const {
    if (!run_->run.request) return nullptr;
    const Feed& feed = *run_->feed;
    return std::make_unique<Answer>(*feed.node_, run_->run, feed.registration_->kind, id_);
}

bool Held::end(std::unique_ptr<Answer> answer) {
    ++run_->feed->handled_;
    if (answer && !answer->try_send(true)) {
        unsent_ = std::move(answer);
        return false;
    }
    handled();
    return true;
}

void Held::deliver() {
    if (unsent_) unsent_->send();
    unsent_.reset();
    handled();
}

Waits::Next Held::attempt(Bell& bell) {
    Waits::Next next = unsent_ ? unsent_->attempt(bell, until_) : Waits::Next::went;
    if (next == Waits::Next::later || next == Waits::Next::steps) return next;
    unsent_.reset();
    handled();
    return Waits::Next::went;  // or it was lost, and is counted as that
}

void Held::handled() {
    const std::shared_ptr<HeldRun> held = std::move(run_);
    run_ = nullptr;
    if (held && ++held->handled < held->run.count) held->feed->node_->progress(held->run, held->handled);
}

Feed::Feed(std::shared_ptr<Node> node, std::shared_ptr<Registration> registration, Reference decode, Reference kind_of,
           Reference encode)
    : node_(std::move(node)),
      registration_(std::move(registration)),
      decode_(std::move(decode)),
      kind_of_(std::move(kind_of)),
      encode_(std::move(encode)) {
    registration_->queue->begin(slice_);
}

Feed::~Feed() {
    if (node_->forked()) {
        new std::shared_ptr<Node>(std::move(node_));
        new std::shared_ptr<Registration>(std::move(registration_));
        return;
    }
    registration_->queue->set_on_ready(nullptr);
    registration_->queue->end(slice_);
}

void Feed::tell(std::shared_ptr<Completions> completions, std::uint64_t number) {
    const auto push = [completions, number] { completions->push_once(number); };
    registration_->queue->set_on_ready(push, true);
    if (!registration_->queue->empty() || closed()) push();
}

// Flushes wait for the messages that are out, and for no later ones.
void Feed::hold(const std::vector<std::shared_ptr<Barrier>>& barriers) {
    for (HeldRun* run : out_) run->barriers.insert(run->barriers.end(), barriers.begin(), barriers.end());
}

// Those that came while messages were out.
void Feed::pass_barriers() { hold(registration_->queue->take_behind(slice_, !out_.empty())); }

PyObject* Feed::take(Py_ssize_t most) {
    if (node_->forked()) return raise_forked();
    Reference list = Reference::steal(PyList_New(0));
    if (!list) return nullptr;
    if (closed()) drop_rest();
    while (PyList_GET_SIZE(list.get()) < most) {
        if (!current_) {
            Run run;
            std::vector<std::shared_ptr<Barrier>> before;
            const bool popped = !closed() && registration_->queue->pop(run, slice_, &before);
            hold(before);  // those that came before this run do not wait for it
            if (!popped) break;
            run.begun = true;
            current_ = std::make_shared<HeldRun>(shared_from_this(), std::move(run));
            out_.push_back(current_.get());
            cursor_ = RunCursor(current_->run);
        }
        const char* data;
        std::size_t size;
        cursor_.next(data, size);
        std::uint64_t id = 0;
        if (current_->run.request) {
            std::memcpy(&id, data, kRequestPrefix);
            data += kRequestPrefix;
            size -= kRequestPrefix;
        }
        // Made first: whatever fails from here on, the message counts as handled.
        auto held = std::make_unique<Held>(current_, id);
        const std::uint16_t source = current_->run.source;
        if (cursor_.left() == 0) current_.reset();
        Reference body = Reference::steal(PyBytes_FromStringAndSize(data, static_cast<Py_ssize_t>(size)));
        if (body && decode_) body = Reference::steal(PyObject_CallOneArg(decode_.get(), body.get()));
        const Reference error = body ? Reference() : take_exception();
        Reference wrapped = Reference::steal(wrap_held(std::move(held)));
        if (!wrapped) return nullptr;
        Reference item = Reference::steal(Py_BuildValue("(iOOO)", source, body ? body.get() : Py_None, wrapped.get(),
                                                        error ? error.get() : Py_None));
        if (!item || PyList_Append(list.get(), item.get()) != 0) return nullptr;
    }
    pass_barriers();
    return list.release();
}

// What was taken from the queue and not handed out when it was closed.
void Feed::drop_rest() {
    while (current_) {
        const char* data;
        std::size_t size;
        cursor_.next(data, size);
        std::uint64_t id = 0;
        if (current_->run.request) std::memcpy(&id, data, kRequestPrefix);
        Held dropped(current_, id);
        if (cursor_.left() == 0) current_.reset();
    }
}

void Feed::close() {
    if (node_->forked()) return;
    {
        Released released;
        node_->remove_registration(registration_);
    }
    drop_rest();
}

}  // namespace antiphon::python
