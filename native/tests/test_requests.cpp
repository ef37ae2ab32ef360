// Requests between whole nodes in one process: asked from many threads, answered from others, given up.
//
// Forbidden: an answer that reaches another request than its own, that comes twice, or that is lost
// while the connection stands; a request that ends twice or never; a late answer that is not counted;
// anything that is left behind when all is answered.
#include "nodes.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <unordered_map>

#include "requests/completions.hpp"

using namespace antiphon;
using namespace antiphon::tests;

namespace {

const std::vector<std::string> kSchemes{"tcp", "unix", "inproc"};
// Answers are stamped like questions, as those of another thread: neither is taken for the other.
constexpr std::uint32_t kAnswers = 1000;

void join(std::vector<std::thread>& threads) {
    for (std::thread& thread : threads) thread.join();
    threads.clear();
}

// Long enough for whatever is to happen: who reaches it has hung.
Nanos patiently() { return now_ns() + check::patience(30 * kSecond); }

// Some time, so that two threads do not meet in the same place in every round.
void pass(std::uint64_t microseconds) {
    const Nanos until = now_ns() + static_cast<Nanos>(microseconds) * kMicrosecond;
    while (now_ns() < until) {
    }
}

Stamp stamp_of(std::string_view text) {
    Stamp stamp;
    CHECK(text.size() >= sizeof stamp);
    std::memcpy(&stamp, text.data(), sizeof stamp);
    return stamp;
}

std::string answer_to(const Question& question, std::size_t size = 64) {
    const Stamp stamp = stamp_of(question.text);
    return stamped(stamp.thread + kAnswers, stamp.sequence, size);
}

void check_answer(std::string_view body, std::uint32_t thread, std::uint64_t sequence, std::size_t size = 64) {
    const Stamp stamp = stamp_of(body);
    CHECK_EQUAL(stamp.thread, thread + kAnswers);
    CHECK_EQUAL(stamp.sequence, sequence);
    CHECK(body == stamped(thread + kAnswers, sequence, size));
}

// Asks, waits, and finds its own answer.
void ask(Node& node, std::uint16_t to, std::uint16_t kind, std::uint32_t thread, std::uint64_t sequence,
         std::size_t size = 64) {
    Request request(node, to, kind);
    CHECK_OK(request.send(stamped(thread, sequence, size), patiently()));
    CHECK(request.wait(patiently()));
    CHECK_EQUAL(request.state(), State::answered);
    check_answer(request.body(), thread, sequence);
}

// Books a question and answers it.
OnRequest answering(Ledger& ledger) {
    return [&ledger](const Question& question) {
        ledger.take(question.peer->id, question.text.data(), question.text.size());
        CHECK_OK(question.answer(answer_to(question)));
    };
}

// Questions that are answered later, in no order, by whoever takes them.
class Held {
   public:
    void put(Question question) {
        std::lock_guard lock(mutex_);
        questions_.push_back(std::move(question));
        ++came_;
        changed_.notify_one();
    }
    OnRequest on_request() {
        return [this](Question question) { put(std::move(question)); };
    }
    // Any one of them; none when there will be none any more.
    template <typename Generator>
    std::optional<Question> take(Generator& random) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return !questions_.empty() || closed_; });
        if (questions_.empty()) return std::nullopt;
        std::swap(questions_[check::below(random, questions_.size())], questions_.back());
        Question question = std::move(questions_.back());
        questions_.pop_back();
        return question;
    }
    void close() {
        std::lock_guard lock(mutex_);
        closed_ = true;
        changed_.notify_all();
    }
    std::uint64_t came() const {
        std::lock_guard lock(mutex_);
        return came_;
    }

   private:
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<Question> questions_;
    std::uint64_t came_ = 0;
    bool closed_ = false;
};

// Threads that answer what is held, until there is no more.
class Answerers {
   public:
    Answerers(Held& held, int count, std::function<void(const Question&)> answer) : held_(held) {
        for (int t = 0; t < count; ++t) {
            threads_.emplace_back([this, t, answer] {
                auto random = check::random(500 + static_cast<std::uint64_t>(t));
                while (const auto question = held_.take(random)) answer(*question);
            });
        }
    }
    ~Answerers() { finish(); }
    void finish() {
        held_.close();
        join(threads_);
    }

   private:
    Held& held_;
    std::vector<std::thread> threads_;
};

// Somebody else, who cancels what it is given.
class Canceller {
   public:
    explicit Canceller(Node& node) : node_(node), thread_([this] { work(); }) {}
    ~Canceller() { finish(); }
    void cancel(std::shared_ptr<Pending> pending) {
        std::lock_guard lock(mutex_);
        doomed_.push_back(std::move(pending));
        changed_.notify_one();
    }
    void finish() {
        {
            std::lock_guard lock(mutex_);
            closed_ = true;
            changed_.notify_one();
        }
        if (thread_.joinable()) thread_.join();
    }

   private:
    void work() {
        std::unique_lock lock(mutex_);
        for (;;) {
            changed_.wait(lock, [this] { return !doomed_.empty() || closed_; });
            if (doomed_.empty()) return;
            const auto pending = std::move(doomed_.front());
            doomed_.pop_front();
            lock.unlock();
            if (Request::cancel(node_, *pending)) CHECK_EQUAL(pending->state(), State::cancelled);
            lock.lock();
        }
    }

    Node& node_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::shared_ptr<Pending>> doomed_;
    bool closed_ = false;
    std::thread thread_;
};

// What a node still holds when everything was answered: at most the buffer that each channel reads into.
void check_at_rest(Node& node) {
    CHECK_EQUAL(node.counters().requests_open, 0);
    CHECK(check::soon([&] { return node.counters().large_in_use == 0; }));
    const std::size_t largest = node.options().buffer_pool.back().first;
    CHECK(check::soon([&] { return node.counters().buffers_out <= largest * node.statistics().size(); }));
    CHECK_EQUAL(node.counters().protocol_errors, 0);
}

// Both channels, before the first answer makes the other node dial: whoever waits can read by itself.
void connect_both_ways(Node& a, Node& b) {
    introduce(a, b);
    for (auto [from, to] : {std::pair(&a, &b), std::pair(&b, &a)}) {
        CHECK_OK(send(*from, to->id(), kKind + 50, "opens the way"));
        CHECK(check::soon([&, from = from, to = to] {
            const auto known = about(*to, from->id());
            return known && known->receiving;
        }));
    }
}

// Every one of `sent` requests was answered on a connection that stood: `answered` of them in time.
void check_books(Node& asks, Node& answers, std::uint64_t sent, std::uint64_t answered) {
    CHECK_EQUAL(asks.counters().requests, sent);
    CHECK(check::soon([&] { return answers.counters().answers == sent; }));
    CHECK(check::soon([&] { return asks.counters().late_responses == sent - answered; }));
    CHECK_EQUAL(answers.counters().lost_answers, 0);
    check_at_rest(asks);
    check_at_rest(answers);
}

}  // namespace

// --- answers find their requests -----------------------------------------------------------------------

TEST("several threads ask over every transport, and every answer reaches its own request") {
    for (const std::string& scheme : kSchemes) {
        for (const Nanos spin : {Nanos{0}, 50 * kMicrosecond}) {
            NodeOptions left = options(1, scheme), right = options(2, scheme);
            left.spin = spin;
            auto a = make_node(left), b = make_node(right);
            Ledger ledger;
            Handler handler(*b, kKind, answering(ledger));
            a->add_peer(2, b->address());
            const std::uint64_t each = check::count(1'000, 200'000);
            std::vector<std::thread> threads;
            for (std::uint32_t t = 0; t < 4; ++t) {
                threads.emplace_back([&, t] {
                    auto random = check::random(t);
                    for (std::uint64_t i = 0; i < each; ++i) ask(*a, 2, kKind, t, i, check::below(random, 500));
                });
            }
            join(threads);
            CHECK_EQUAL(ledger.total(), 4 * each);
            check_books(*a, *b, 4 * each, 4 * each);
            CHECK(a->close(kSecond));
            CHECK(b->close(kSecond));
        }
    }
}

TEST("answers, errors and refusals do not get mixed up") {
    auto a = make_node(options(1)), b = make_node(options(2));
    Ledger fine, wrong;
    Handler handler(*b, kKind, answering(fine));
    Handler fails(*b, kKind + 1, OnRequest([&](const Question& question) {
                      wrong.take(question.peer->id, question.text.data(), question.text.size());
                      CHECK_OK(question.answer(answer_to(question), ResponseHead::Status::error));
                  }));
    std::atomic<std::uint64_t> messages{0};
    Handler silent(*b, kKind + 2, [&](std::uint16_t, const char*, std::size_t) { messages.fetch_add(1); });
    a->add_peer(2, b->address());
    const std::uint64_t each = check::count(2'000, 100'000);
    std::vector<std::thread> threads;
    for (std::uint32_t t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            std::uint64_t sequences[4]{};
            auto random = check::random(t);
            for (std::uint64_t i = 0; i < each; ++i) {
                const std::size_t which = check::below(random, 4);
                const std::uint64_t sequence = sequences[which]++;
                Request request(*a, 2, static_cast<std::uint16_t>(kKind + which));
                CHECK_OK(request.send(stamped(t, sequence, 40), patiently()));
                CHECK(request.wait(patiently()));
                const State expected[]{State::answered, State::failed, State::cannot, State::unknown_kind};
                CHECK_EQUAL(request.state(), expected[which]);
                if (which < 2) check_answer(request.body(), t, sequence);
                if (which == 2) CHECK(request.body().find("cannot answer") != std::string_view::npos);
            }
        });
    }
    join(threads);
    CHECK_EQUAL(messages.load(), 0);
    CHECK_EQUAL(a->counters().late_responses, 0);
    CHECK(check::soon([&] { return b->counters().answers == fine.total() + wrong.total(); }));
    check_at_rest(*a);
    check_at_rest(*b);
}

TEST("answers that are held and given later, by other threads and in another order, reach their requests") {
    for (const std::string& scheme : kSchemes) {
        auto a = make_node(options(1, scheme)), b = make_node(options(2, scheme));
        Ledger ledger;
        Held held;
        Handler handler(*b, kKind, [&](Question question) {
            ledger.take(question.peer->id, question.text.data(), question.text.size());
            held.put(std::move(question));
        });
        a->add_peer(2, b->address());
        const std::uint64_t rounds = check::count(100, 10'000), open = 16;
        std::vector<std::thread> threads;
        // Every thread has several open at once, and waits for them in another order again.
        for (std::uint32_t t = 0; t < 4; ++t) {
            threads.emplace_back([&, t] {
                auto random = check::random(t);
                for (std::uint64_t round = 0; round < rounds; ++round) {
                    std::vector<std::pair<std::uint64_t, std::unique_ptr<Request>>> asked;
                    for (std::uint64_t i = round * open; i < (round + 1) * open; ++i) {
                        asked.emplace_back(i, std::make_unique<Request>(*a, 2, kKind));
                        CHECK_OK(asked.back().second->send(stamped(t, i, check::below(random, 300)), patiently()));
                    }
                    std::shuffle(asked.begin(), asked.end(), random);
                    for (auto& [sequence, request] : asked) {
                        CHECK(check::below(random, 3) == 0 ? request->follow(patiently()) : request->wait(patiently()));
                        CHECK_EQUAL(request->state(), State::answered);
                        check_answer(request->body(), t, sequence);
                    }
                }
            });
        }
        // Nobody answers before several wait.
        CHECK(check::soon([&] { return held.came() >= open; }));
        Answerers answerers(held, 3, [](const Question& question) { CHECK_OK(question.answer(answer_to(question))); });
        join(threads);
        answerers.finish();
        CHECK_EQUAL(ledger.total(), 4 * rounds * open);
        check_books(*a, *b, 4 * rounds * open, 4 * rounds * open);
    }
}

// --- giving up -----------------------------------------------------------------------------------------

TEST("callers give up, or are given up, while answers arrive: each request ends once, and late answers are counted") {
    for (const std::string& scheme : kSchemes) {
        for (const bool later : {false, true}) {
            auto a = make_node(options(1, scheme)), b = make_node(options(2, scheme));
            Ledger ledger(Ledger::Gaps::allowed);
            Held held;
            Handler handler(*b, kKind, [&](Question question) {
                ledger.take(question.peer->id, question.text.data(), question.text.size());
                if (later) return held.put(std::move(question));
                CHECK_OK(question.answer(answer_to(question)));
            });
            a->add_peer(2, b->address());
            Answerers answerers(held, 2, [](const Question& question) { CHECK_OK(question.answer(answer_to(question))); });
            ask(*a, 2, kKind, 99, 0);  // so that no deadline goes by while the connection is opened
            Canceller canceller(*a);
            std::atomic<std::uint64_t> sent{1}, answered{1}, given_up{0};
            const std::uint64_t each = check::count(1'200, 200'000);
            std::vector<std::thread> threads;
            for (std::uint32_t t = 0; t < 4; ++t) {
                threads.emplace_back([&, t] {
                    auto random = check::random(t);
                    for (std::uint64_t i = 0; i < each; ++i) {
                        Request request(*a, 2, kKind);
                        const std::uint64_t course = check::below(random, 6);
                        Nanos deadline = patiently();
                        if (course == 1) canceller.cancel(request.pending());  // even before it is sent
                        if (course <= 2) deadline = now_ns() + static_cast<Nanos>(check::below(random, 300)) * kMicrosecond;
                        const Outcome outcome = request.send(stamped(t, i, check::below(random, 200)), deadline);
                        if (outcome.ok()) {
                            sent.fetch_add(1);
                        } else {
                            CHECK_SAYS(outcome.code == Code::timeout || outcome.code == Code::interrupted, explain(outcome));
                            CHECK_EQUAL(request.state(), State::cancelled);
                            continue;
                        }
                        if (course == 3) canceller.cancel(request.pending());
                        if (course == 4) request.cancel();
                        const bool done = check::below(random, 2) == 0 ? request.wait(deadline) : request.follow(deadline);
                        if (!done) {
                            CHECK(course <= 2);
                            request.cancel();
                        }
                        if (request.state() == State::answered) {
                            check_answer(request.body(), t, i);
                            answered.fetch_add(1);
                        } else {
                            CHECK_EQUAL(request.state(), State::cancelled);
                            CHECK(request.body().empty());
                            CHECK(course != 5);
                            given_up.fetch_add(1);
                        }
                    }
                });
            }
            join(threads);
            canceller.finish();
            // Every one was asked, and nobody was answered who had given up.
            CHECK_EQUAL(answered.load() + given_up.load(), sent.load());
            CHECK(check::soon([&] { return ledger.total() == sent.load(); }));
            answerers.finish();
            check_books(*a, *b, sent.load(), answered.load());
            CHECK(given_up.load() != 0);
        }
    }
}

TEST("an event loop is told of every request once, however it ends") {
    auto a = make_node(options(1)), b = make_node(options(2));
    Held held;
    Handler handler(*b, kKind, held.on_request());
    Answerers answerers(held, 2, [](const Question& question) { CHECK_OK(question.answer(answer_to(question))); });
    a->add_peer(2, b->address());
    ask(*a, 2, kKind, 99, 0);
    struct Asked {
        std::shared_ptr<Request> request;
        std::uint32_t thread;
        std::uint64_t sequence;
    };
    std::mutex mutex;
    std::unordered_map<std::uint64_t, Asked> asked;
    std::uint64_t told = 0, answered = 1;
    const auto completions = std::make_shared<Completions>();
    const std::uint64_t each = check::count(8'000, 200'000), all = 3 * each;
    std::thread loop([&] {
        pollfd watched{completions->fd(), POLLIN, 0};
        while (told < all) {
            CHECK_EQUAL(poll(&watched, 1, static_cast<int>(check::patience(30 * kSecond) / kMillisecond)), 1);
            for (const std::uint64_t id : completions->take()) {
                Asked one;
                {
                    std::lock_guard lock(mutex);
                    const auto found = asked.find(id);
                    CHECK(found != asked.end());  // not told before
                    one = std::move(found->second);
                    asked.erase(found);
                }
                ++told;
                if (one.request->state() == State::answered) {
                    check_answer(one.request->body(), one.thread, one.sequence);
                    ++answered;
                } else {
                    CHECK_EQUAL(one.request->state(), State::cancelled);
                }
            }
        }
    });
    Canceller canceller(*a);
    std::vector<std::thread> threads;
    for (std::uint32_t t = 0; t < 3; ++t) {
        threads.emplace_back([&, t] {
            auto random = check::random(t);
            for (std::uint64_t i = 0; i < each; ++i) {
                auto request = std::make_shared<Request>(*a, 2, kKind);
                {
                    std::lock_guard lock(mutex);
                    asked.emplace(request->pending()->id, Asked{request, t, i});
                }
                const std::uint64_t course = check::below(random, 4);
                if (course != 0) request->pending()->tell(completions);
                CHECK_OK(request->send(stamped(t, i, 40), patiently()));
                if (course == 1) canceller.cancel(request->pending());
                if (course == 2) request->cancel();
                if (course == 0) request->pending()->tell(completions);
            }
        });
    }
    join(threads);
    canceller.finish();
    loop.join();
    CHECK(check::soon([&] { return held.came() == all + 1; }));
    answerers.finish();
    CHECK(asked.empty());
    CHECK(completions->take().empty());
    check_books(*a, *b, all + 1, answered);
}

// --- who reads -----------------------------------------------------------------------------------------

TEST("callers that read by themselves, callers that do not, and senders share the channels of both directions") {
    for (const std::string& scheme : kSchemes) {
        for (const Nanos spin : {Nanos{0}, 50 * kMicrosecond}) {
            std::vector<std::unique_ptr<Node>> nodes;
            std::vector<std::unique_ptr<Ledger>> questions, messages;
            std::vector<std::unique_ptr<Handler>> handlers;
            for (std::uint16_t id = 1; id <= 2; ++id) {
                NodeOptions one = options(id, scheme);
                one.spin = spin;
                one.flow_window_bytes = 16 << 10;  // small: senders wait for credit, and read it by themselves
                nodes.push_back(make_node(one));
                questions.push_back(std::make_unique<Ledger>());
                messages.push_back(std::make_unique<Ledger>());
                handlers.push_back(std::make_unique<Handler>(*nodes.back(), kKind, answering(*questions.back())));
                handlers.push_back(std::make_unique<Handler>(*nodes.back(), kKind + 1, messages.back()->on_message()));
            }
            introduce(*nodes[0], *nodes[1]);
            const std::uint64_t each = check::count(600, 100'000);
            std::vector<std::thread> threads;
            for (std::size_t from = 0; from < 2; ++from) {
                Node& node = *nodes[from];
                const auto to = static_cast<std::uint16_t>(2 - from);
                for (std::uint32_t t = 0; t < 2; ++t) {
                    threads.emplace_back([&node, to, t, each] {
                        for (std::uint64_t i = 0; i < each; ++i) ask(node, to, kKind, t, i);
                    });
                }
                threads.emplace_back([&node, to, each] {
                    for (std::uint64_t i = 0; i < each; ++i) {
                        Request request(node, to, kKind);
                        CHECK_OK(request.send(stamped(7, i, 64), patiently()));
                        CHECK(request.follow(patiently()));
                        CHECK_EQUAL(request.state(), State::answered);
                        check_answer(request.body(), 7, i);
                    }
                });
                threads.emplace_back([&node, to, each] {
                    for (std::uint64_t i = 0; i < 4 * each; ++i) CHECK_OK(send(node, to, kKind + 1, stamped(8, i, i % 700)));
                    CHECK_OK(flush(node));
                });
            }
            join(threads);
            for (std::size_t n = 0; n < 2; ++n) {
                CHECK_EQUAL(questions[n]->total(), 3 * each);
                CHECK_EQUAL(messages[n]->total(), 4 * each);
                CHECK(about(*nodes[n], static_cast<std::uint16_t>(2 - n))->credit_waits != 0);
                check_books(*nodes[n], *nodes[1 - n], 3 * each, 3 * each);
            }
            for (auto& node : nodes) CHECK(node->close(kSecond));
        }
    }
}

TEST("a caller that looks for signals lets others read meanwhile, and may ask on the same connection itself") {
    auto a = make_node(options(1)), b = make_node(options(2));
    Held first, second;
    Ledger ledger;
    Handler handler(*b, kKind, answering(ledger));
    Handler holds_first(*b, kKind + 1, first.on_request()), holds_second(*b, kKind + 2, second.on_request());
    a->add_peer(2, b->address());
    constexpr std::uint32_t kThreads = 3;
    std::atomic<std::uint32_t> looked{0}, interrupted{0};
    std::vector<std::thread> threads;
    for (std::uint32_t t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
            // Not answered before everybody has looked twice: they do every 100 ms.
            Request request(*a, 2, kKind + 1);
            CHECK_OK(request.send(stamped(t, 0, 64), patiently()));
            std::uint64_t looks = 0;
            const Interrupted look = [&] {
                ask(*a, 2, kKind, t, looks++);  // as a signal handler may
                if (looks == 2) looked.fetch_add(1);
                return false;
            };
            CHECK(request.wait(patiently(), &look));
            CHECK(looks >= 2);
            check_answer(request.body(), t, 0);
            // Not answered before everybody was interrupted: then it is still open, and waited for again.
            Request again(*a, 2, kKind + 2);
            CHECK_OK(again.send(stamped(t, 1, 64), patiently()));
            const Interrupted at_once = [] { return true; };
            CHECK(!again.wait(patiently(), &at_once));
            interrupted.fetch_add(1);
            CHECK(again.wait(patiently()));
            check_answer(again.body(), t, 1);
        });
    }
    const auto answer = [](const Question& question) { CHECK_OK(question.answer(answer_to(question))); };
    CHECK(check::soon([&] { return looked.load() == kThreads; }));
    Answerers answer_first(first, 1, answer);
    CHECK(check::soon([&] { return interrupted.load() == kThreads; }));
    Answerers answer_second(second, 1, answer);
    join(threads);
    check_books(*a, *b, 2 * kThreads + ledger.total(), 2 * kThreads + ledger.total());
}

// --- inside handlers -----------------------------------------------------------------------------------

TEST("handlers ask back, and those that answer them ask again, in both directions at once") {
    for (const std::string& scheme : kSchemes) {
        constexpr std::uint16_t kDepth = 5;
        std::vector<std::unique_ptr<Node>> nodes;
        for (std::uint16_t id = 1; id <= 2; ++id) {
            NodeOptions one = options(id, scheme);
            one.threads = 1;  // every handler that waits is replaced by a spare
            nodes.push_back(make_node(one));
        }
        std::vector<std::unique_ptr<Handler>> handlers;
        std::atomic<std::uint64_t> calls{0};
        // Kind kKind + n asks for kind kKind + n - 1 at the node that asked, and passes its answer on.
        for (std::size_t n = 0; n < 2; ++n) {
            for (std::uint16_t depth = 0; depth < kDepth; ++depth) {
                handlers.push_back(std::make_unique<Handler>(*nodes[n], static_cast<std::uint16_t>(kKind + depth), OnRequest([&, n, depth](const Question& question) {
                    calls.fetch_add(1);
                    if (depth == 0) {
                        CHECK_OK(question.answer(answer_to(question)));
                        return;
                    }
                    Request request(*nodes[n], question.peer->id, static_cast<std::uint16_t>(kKind + depth - 1));
                    CHECK_OK(request.send(question.text, patiently()));
                    CHECK(request.wait(patiently()));
                    CHECK_EQUAL(request.state(), State::answered);
                    CHECK_OK(question.answer(request.body()));
                })));
            }
        }
        introduce(*nodes[0], *nodes[1]);
        const std::uint64_t each = check::count(300, 20'000);
        std::vector<std::thread> threads;
        for (std::uint32_t t = 0; t < 4; ++t) {
            threads.emplace_back([&, t] {
                for (std::uint64_t i = 0; i < each; ++i) {
                    ask(*nodes[t % 2], static_cast<std::uint16_t>(2 - t % 2), static_cast<std::uint16_t>(kKind + (i + t) % kDepth), t, i);
                }
            });
        }
        join(threads);
        CHECK_EQUAL(calls.load(), nodes[0]->counters().requests + nodes[1]->counters().requests);
        for (std::size_t n = 0; n < 2; ++n) {
            const std::uint64_t asked = nodes[n]->counters().requests;
            check_books(*nodes[n], *nodes[1 - n], asked, asked);
        }
    }
}

TEST("a handler asks its own node, on the only thread there is") {
    NodeOptions alone = options(1);
    alone.threads = 1;
    auto node = make_node(alone);
    node->add_peer(1, node->address());
    Ledger ledger;
    Handler inner(*node, kKind, answering(ledger));
    Handler outer(*node, kKind + 1, OnRequest([&](const Question& question) {
                      Request request(*node, 1, kKind);
                      CHECK_OK(request.send(question.text, patiently()));
                      CHECK(request.wait(patiently()));
                      CHECK_OK(question.answer(request.body()));
                  }));
    const std::uint64_t each = check::count(500, 20'000);
    std::vector<std::thread> threads;
    for (std::uint32_t t = 0; t < 3; ++t) {
        threads.emplace_back([&, t] {
            for (std::uint64_t i = 0; i < each; ++i) ask(*node, 1, kKind + 1, t, i);
        });
    }
    join(threads);
    CHECK_EQUAL(ledger.total(), 3 * each);
    check_books(*node, *node, 6 * each, 6 * each);
}

TEST("a handler that waits for an answer passes on what it reads meanwhile, while another thread waits elsewhere") {
    // No sign of life wakes anybody.
    auto quiet = [](std::uint16_t id) {
        NodeOptions one = options(id);
        one.heartbeat = check::patience(60 * kSecond);
        return make_node(one);
    };
    auto us = quiet(1), asker = quiet(2), asked = quiet(3);
    Handler back(*us, kKind, OnRequest([&](const Question& question) { CHECK_OK(question.answer(question.text)); }));
    Handler outer(*us, kKind + 1, OnRequest([&](const Question& question) {
                      Request request(*us, 3, kKind + 2);
                      CHECK_OK(request.send(question.text, patiently()));
                      CHECK(request.wait(patiently()));
                      CHECK_OK(question.answer(request.body()));
                  }));
    Handler asks_back(*asked, kKind + 2, OnRequest([&](const Question& question) {
                          Request request(*asked, 1, kKind);
                          CHECK_OK(request.send(question.text, patiently()));
                          CHECK(request.wait(patiently()));
                          CHECK_OK(question.answer(request.body()));
                      }));
    introduce(*us, *asker);
    introduce(*us, *asked);
    for (std::uint64_t i = 0; i < check::count(200, 5'000); ++i) {
        Request request(*asker, 1, kKind + 1);
        const std::string text = std::to_string(i);
        CHECK_OK(request.send(text, patiently()));
        CHECK(request.wait(patiently()));
        CHECK_EQUAL(request.state(), State::answered);
        CHECK(request.body() == text);
        // Long enough for the thread that answered to wait for the next one.
        if (i % 4 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

// --- ends ------------------------------------------------------------------------------------------------

namespace {

// Threads that each have one request open, which nobody answers; some read by themselves, some do not.
class Callers {
   public:
    Callers(Node& node, std::uint16_t to, std::uint16_t kind, std::uint32_t count) : count_(count) {
        for (std::uint32_t t = 0; t < count; ++t) {
            threads_.emplace_back([this, &node, to, kind, t] {
                Request request(node, to, kind);
                CHECK_OK(request.send(stamped(t, 0, 64), patiently()));
                CHECK(t % 3 == 2 ? request.follow(patiently()) : request.wait(patiently()));
                ended_[static_cast<std::size_t>(request.state())].fetch_add(1);
            });
        }
    }
    ~Callers() { finish(); }
    void finish() { join(threads_); }
    std::uint64_t ended(State state) const { return ended_[static_cast<std::size_t>(state)].load(); }
    void check_all(State state) {
        finish();
        CHECK_EQUAL(ended(state), count_);
    }

   private:
    const std::uint32_t count_;
    std::array<std::atomic<std::uint64_t>, static_cast<std::size_t>(State::closed) + 1> ended_{};  // the last one
    std::vector<std::thread> threads_;
};

constexpr std::uint32_t kMany = 12;

}  // namespace

TEST("closing the node of those who ask wakes them all, as closed") {
    for (const std::string& scheme : kSchemes) {
        for (const Nanos drain : {Nanos{0}, check::patience(5 * kSecond)}) {
            for (std::uint64_t round = 0; round < check::count(4, 200); ++round) {
                auto a = make_node(options(1, scheme)), b = make_node(options(2, scheme));
                Held held;
                Handler handler(*b, kKind, held.on_request());
                a->add_peer(2, b->address());
                if (round % 2 == 0) connect_both_ways(*a, *b);  // or nobody can read by itself
                Callers callers(*a, 2, kKind, kMany);
                CHECK(check::soon([&] { return held.came() == kMany; }));
                CHECK_EQUAL(a->counters().requests_open, kMany);
                CHECK(a->close(drain));
                callers.check_all(State::closed);
                CHECK_EQUAL(a->counters().requests_open, 0);
                Request late(*a, 2, kKind);
                CHECK_EQUAL(late.send(stamped(0, 0, 64), patiently()).code, Code::closed);
                CHECK_EQUAL(late.state(), State::cancelled);
                CHECK_EQUAL(a->counters().requests_open, 0);
                // Whoever answers now finds nobody, and does not wait for it.
                CHECK(check::soon([&] { return !about(*b, 1)->receiving; }));
                auto random = check::random(round);
                const Question question = held.take(random).value();
                CHECK_EQUAL(question.answer(answer_to(question)).code, Code::closed);
                check_at_rest(*b);
            }
        }
    }
}

TEST("closing the node that is asked wakes whoever waits for its answers, as lost") {
    for (const std::string& scheme : kSchemes) {
        for (const Nanos drain : {Nanos{0}, check::patience(5 * kSecond)}) {
            for (std::uint64_t round = 0; round < check::count(4, 200); ++round) {
                auto a = make_node(options(1, scheme)), b = make_node(options(2, scheme)), c = make_node(options(3, scheme));
                Held held, elsewhere;
                Handler handler(*b, kKind, held.on_request()), other(*c, kKind, elsewhere.on_request());
                a->add_peer(2, b->address());
                a->add_peer(3, c->address());
                if (round % 2 == 0) connect_both_ways(*a, *b);
                Callers callers(*a, 2, kKind, kMany), steady(*a, 3, kKind, 3);
                CHECK(check::soon([&] { return held.came() == kMany && elsewhere.came() == 3; }));
                CHECK(b->close(drain));
                callers.check_all(State::lost);
                // Those that wait for another node go on waiting, and are answered.
                CHECK_EQUAL(a->counters().requests_open, 3);
                elsewhere.close();
                auto random = check::random(round);
                while (const auto question = elsewhere.take(random)) CHECK_OK(question->answer(answer_to(*question)));
                steady.check_all(State::answered);
                check_at_rest(*a);
                const Question question = held.take(random).value();
                CHECK_EQUAL(question.answer(answer_to(question)).code, Code::closed);
            }
        }
    }
}

TEST("a handler that is removed answers what it has begun, and the rest is told that nobody will") {
    auto a = make_node(options(1)), b = make_node(options(2));
    connect_both_ways(*a, *b);
    for (std::uint64_t round = 0; round < check::count(40, 1'000); ++round) {
        std::atomic<bool> entered{false}, goes_on{false};
        std::atomic<std::uint64_t> begun{0};
        auto handler = std::make_unique<Handler>(*b, kKind, OnRequest([&](const Question& question) {
            begun.fetch_add(1);
            entered.store(true);
            CHECK(check::soon([&] { return goes_on.load(); }));
            CHECK_OK(question.answer(answer_to(question)));
        }));
        Callers callers(*a, 2, kKind, kMany);
        CHECK(check::soon([&] { return entered.load() && handler->registration().messages.load() == kMany; }));
        std::thread closing([&] { handler->close(); });
        CHECK(check::soon([&] { return handler->queue().closed(); }));
        goes_on.store(true);
        closing.join();
        callers.finish();
        CHECK_EQUAL(callers.ended(State::answered), begun.load());
        CHECK_EQUAL(callers.ended(State::answered) + callers.ended(State::cannot), kMany);
        check_at_rest(*a);
    }
    CHECK_EQUAL(a->counters().late_responses, 0);
}

TEST("connections that fall while requests are under way lose them, and never mix them up") {
    for (const std::string& scheme : kSchemes) {
        auto a = make_node(options(1, scheme)), b = make_node(options(2, scheme));
        Ledger at_a(Ledger::Gaps::allowed), at_b(Ledger::Gaps::allowed);
        Held held_a, held_b;
        const auto holds = [](Ledger& ledger, Held& held) {
            return [&](Question question) {
                ledger.take(question.peer->id, question.text.data(), question.text.size());
                held.put(std::move(question));
            };
        };
        Handler handler_a(*a, kKind, holds(at_a, held_a)), handler_b(*b, kKind, holds(at_b, held_b));
        const auto answer = [](const Question& question) {
            const Outcome outcome = question.answer(answer_to(question));
            if (outcome.ok()) return;
            CHECK_SAYS(outcome.code == Code::closed || outcome.code == Code::unreachable, explain(outcome));
        };
        Answerers answerers_a(held_a, 1, answer), answerers_b(held_b, 2, answer);
        introduce(*a, *b);
        std::atomic<bool> ends{false};
        std::atomic<std::uint64_t> answered{0}, lost{0};
        std::vector<std::thread> threads;
        for (std::uint32_t t = 0; t < 5; ++t) {
            threads.emplace_back([&, t] {
                Node& from = t < 3 ? *a : *b;
                const auto to = static_cast<std::uint16_t>(t < 3 ? 2 : 1);
                for (std::uint64_t i = 0; !ends.load(); ++i) {
                    Request request(from, to, kKind);
                    const Outcome outcome = request.send(stamped(t, i, 64 + i % 200), patiently());
                    if (!outcome.ok()) {
                        CHECK_SAYS(outcome.code == Code::unreachable || outcome.code == Code::interrupted, explain(outcome));
                        lost.fetch_add(1);
                        continue;
                    }
                    CHECK(t % 2 == 1 ? request.follow(patiently()) : request.wait(patiently()));
                    if (request.state() == State::answered) {
                        check_answer(request.body(), t, i);
                        answered.fetch_add(1);
                    } else {
                        CHECK_EQUAL(request.state(), State::lost);
                        lost.fetch_add(1);
                    }
                }
            });
        }
        auto random = check::random(77);
        const std::uint64_t rounds = check::count(60, 3'000);
        for (std::uint64_t round = 0; round < rounds; ++round) {
            const std::uint64_t before = answered.load();
            CHECK(check::soon([&] { return answered.load() > before + check::below(random, 30); }));
            const bool left = check::below(random, 2) == 0;
            Node& node = left ? *a : *b;
            const std::uint16_t other = left ? 2 : 1;
            node.remove_peer(other);
            node.add_peer(other, (left ? *b : *a).address());
        }
        ends.store(true);
        join(threads);
        CHECK(lost.load() != 0);
        answerers_a.finish();
        answerers_b.finish();
        check_at_rest(*a);
        check_at_rest(*b);
        CHECK(a->close(kSecond));
        CHECK(b->close(kSecond));
    }
}

TEST("requests that are cancelled while their node closes end as the one or the other, and once") {
    for (const std::string& scheme : kSchemes) {
        for (std::uint64_t round = 0; round < check::count(40, 2'000); ++round) {
            auto a = make_node(options(1, scheme)), b = make_node(options(2, scheme));
            Held held;
            Handler handler(*b, kKind, held.on_request());
            connect_both_ways(*a, *b);
            std::vector<std::unique_ptr<Request>> requests;
            for (std::uint32_t t = 0; t < 6; ++t) {
                requests.push_back(std::make_unique<Request>(*a, 2, kKind));
                CHECK_OK(requests.back()->send(stamped(t, 0, 64), patiently()));
            }
            CHECK(check::soon([&] { return held.came() == requests.size(); }));
            auto random = check::random(round);
            std::atomic<std::uint64_t> cancelled{0}, ready{0};
            std::vector<std::thread> threads;
            for (auto& request : requests) {
                threads.emplace_back([&] {
                    ready.fetch_add(1);
                    CHECK(request->wait(patiently()));
                });
            }
            for (int t = 0; t < 2; ++t) {
                threads.emplace_back([&, t] {
                    auto random = check::random(1'000 + round * 2 + static_cast<std::uint64_t>(t));
                    CHECK(check::soon([&] { return ready.load() == requests.size() + 1; }));
                    pass(check::below(random, 500));
                    for (auto& request : requests) cancelled.fetch_add(request->cancel());
                });
            }
            CHECK(check::soon([&] { return ready.load() == requests.size(); }));
            ready.fetch_add(1);
            pass(check::below(random, 1'000));
            CHECK(a->close(0));
            join(threads);
            std::uint64_t closed = 0;
            for (auto& request : requests) {
                CHECK(request->state() == State::closed || request->state() == State::cancelled);
                closed += request->state() == State::closed;
            }
            CHECK_EQUAL(closed + cancelled.load(), requests.size());
            CHECK_EQUAL(a->counters().requests_open, 0);
        }
    }
}

TEST("nodes that close at once while both ask and answer leave nobody waiting") {
    for (const std::string& scheme : kSchemes) {
        for (std::uint64_t round = 0; round < check::count(8, 200); ++round) {
            auto a = make_node(options(1, scheme)), b = make_node(options(2, scheme));
            const auto answer = [](const Question& question) {
                const Outcome outcome = question.answer(answer_to(question));
                if (!outcome.ok()) CHECK_SAYS(outcome.code == Code::closed || outcome.code == Code::unreachable, explain(outcome));
            };
            Handler handler_a(*a, kKind, OnRequest(answer)), handler_b(*b, kKind, OnRequest(answer));
            introduce(*a, *b);
            std::atomic<std::uint64_t> answered[2]{};
            std::vector<std::thread> threads;
            for (std::uint32_t t = 0; t < 6; ++t) {
                threads.emplace_back([&, t] {
                    Node& from = t % 2 == 0 ? *a : *b;
                    const auto to = static_cast<std::uint16_t>(t % 2 == 0 ? 2 : 1);
                    for (std::uint64_t i = 0;; ++i) {
                        Request request(from, to, kKind);
                        const Outcome outcome = request.send(stamped(t, i, 64), patiently());
                        if (outcome.code == Code::closed) return;
                        if (!outcome.ok()) {
                            // The other one went first: lost while it was sent, or nobody listens there any more.
                            CHECK_SAYS(outcome.code == Code::unreachable || outcome.code == Code::interrupted, explain(outcome));
                            continue;
                        }
                        CHECK(t % 3 == 2 ? request.follow(patiently()) : request.wait(patiently()));
                        const State state = request.state();
                        if (state == State::answered) {
                            check_answer(request.body(), t, i);
                            answered[t % 2].fetch_add(1);
                        } else if (state == State::closed) {
                            return;
                        } else {
                            CHECK(state == State::lost || state == State::cannot);
                        }
                    }
                });
            }
            CHECK(check::soon([&] { return answered[0].load() > 50 && answered[1].load() > 50; }));
            const Nanos drain = round % 2 == 0 ? 0 : kSecond / 2;
            std::thread other([&] { CHECK(b->close(drain)); });
            CHECK(a->close(drain));
            other.join();
            join(threads);
            CHECK_EQUAL(a->counters().requests_open, 0);
            CHECK_EQUAL(b->counters().requests_open, 0);
        }
    }
}

// --- large ones ------------------------------------------------------------------------------------------

namespace {

// Small, around the limits of frame and window, or in many fragments; known from the question alone.
std::size_t answer_size(std::uint32_t thread, std::uint64_t sequence) {
    auto random = check::random(thread * 1'000'003 + sequence);
    switch (check::below(random, 6)) {
        case 0: return 100'000 + check::below(random, 900'000);
        case 1: return (64 << 10) - 40 + check::below(random, 80);
        case 2: return (256 << 10) - 40 + check::below(random, 80);
        default: return sizeof(Stamp) + check::below(random, 300);
    }
}

NodeOptions narrow(std::uint16_t id, const std::string& scheme) {
    NodeOptions narrow = options(id, scheme);
    narrow.ring_bytes = 256 << 10;
    narrow.flow_window_bytes = 256 << 10;
    narrow.large_message_bytes = 4 << 20;  // less than the threads want at once: some wait
    narrow.max_message_bytes = 3 << 20;
    return narrow;
}

}  // namespace

TEST("large answers and questions in fragments and small ones share a connection, and reach their own") {
    for (const std::string& scheme : kSchemes) {
        auto a = make_node(narrow(1, scheme)), b = make_node(narrow(2, scheme));
        Ledger ledger;
        Held held;
        Handler handler(*b, kKind, [&](Question question) {
            ledger.take(question.peer->id, question.text.data(), question.text.size());
            held.put(std::move(question));
        });
        a->add_peer(2, b->address());
        Answerers answerers(held, 3, [](const Question& question) {
            const Stamp stamp = stamp_of(question.text);
            CHECK_OK(question.answer(answer_to(question, answer_size(stamp.thread, stamp.sequence))));
        });
        const std::uint64_t each = check::count(80, 4'000);
        std::vector<std::thread> threads;
        for (std::uint32_t t = 0; t < 4; ++t) {
            threads.emplace_back([&, t] {
                auto random = check::random(t);
                for (std::uint64_t i = 0; i < each; ++i) {
                    const std::size_t size = check::below(random, 8) == 0 ? check::below(random, 1 << 20) : 64;
                    Request request(*a, 2, kKind);
                    CHECK_OK(request.send(stamped(t, i, size), patiently()));
                    CHECK(check::below(random, 3) == 0 ? request.follow(patiently()) : request.wait(patiently()));
                    CHECK_EQUAL(request.state(), State::answered);
                    check_answer(request.body(), t, i, answer_size(t, i));
                }
            });
        }
        join(threads);
        answerers.finish();
        CHECK_EQUAL(ledger.total(), 4 * each);
        CHECK(about(*a, 2)->large_in != 0);
        CHECK(about(*a, 2)->large_out != 0);
        check_books(*a, *b, 4 * each, 4 * each);
    }
}

TEST("whoever has a request or an answer, small or large, finds it counted") {
    for (const std::size_t size : {std::size_t{64}, std::size_t{6000}}) {
        NodeOptions narrow = options(1, "unix");
        narrow.flow_window_bytes = 16 << 10;  // then an answer of 6000 bytes comes in fragments
        NodeOptions other = options(2, "unix");
        other.flow_window_bytes = narrow.flow_window_bytes;
        auto a = make_node(narrow), b = make_node(other);
        Handler handler(*b, kKind, [&](const Question& question) {
            CHECK_EQUAL(a->counters().requests, stamp_of(question.text).sequence + 1);
            CHECK_OK(question.answer(answer_to(question, size)));
        });
        introduce(*a, *b);
        for (std::uint64_t i = 0; i < check::count(2'000, 100'000); ++i) {
            Request request(*a, 2, kKind);
            CHECK_OK(request.send(stamped(0, i, size), patiently()));
            CHECK(request.wait(patiently()));
            CHECK_EQUAL(b->counters().answers, i + 1);
            check_answer(request.body(), 0, i, size);
        }
        CHECK_EQUAL(about(*a, 2)->large_out != 0, size > 4096);
        CHECK_EQUAL(about(*b, 1)->large_out != 0, size > 4096);
    }
}

TEST("large answers to those who have given up leave no memory behind") {
    for (const std::string& scheme : kSchemes) {
        auto a = make_node(narrow(1, scheme)), b = make_node(narrow(2, scheme));
        Held held;
        Handler handler(*b, kKind, held.on_request());
        a->add_peer(2, b->address());
        Answerers answerers(held, 2, [](const Question& question) {
            const Stamp stamp = stamp_of(question.text);
            CHECK_OK(question.answer(answer_to(question, answer_size(stamp.thread, stamp.sequence))));
        });
        {
            Request first(*a, 2, kKind);  // opens the connection
            CHECK_OK(first.send(stamped(99, 0, 64), patiently()));
            CHECK(first.wait(patiently()));
        }
        Canceller canceller(*a);
        std::atomic<std::uint64_t> sent{1}, answered{1};
        const std::uint64_t each = check::count(150, 8'000);
        std::vector<std::thread> threads;
        for (std::uint32_t t = 0; t < 4; ++t) {
            threads.emplace_back([&, t] {
                auto random = check::random(t);
                for (std::uint64_t i = 0; i < each; ++i) {
                    Request request(*a, 2, kKind);
                    CHECK_OK(request.send(stamped(t, i, 64), patiently()));
                    sent.fetch_add(1);
                    const bool hasty = check::below(random, 2) == 0;
                    const Nanos deadline = hasty ? now_ns() + static_cast<Nanos>(check::below(random, 2000)) * kMicrosecond : patiently();
                    if (!hasty && check::below(random, 3) == 0) canceller.cancel(request.pending());
                    if (!request.wait(deadline)) {
                        CHECK(hasty);
                        request.cancel();
                    }
                    if (request.state() == State::answered) {
                        check_answer(request.body(), t, i, answer_size(t, i));
                        answered.fetch_add(1);
                    } else {
                        CHECK_EQUAL(request.state(), State::cancelled);
                    }
                }
            });
        }
        join(threads);
        canceller.finish();
        CHECK(check::soon([&] { return held.came() == sent.load(); }));
        answerers.finish();
        check_books(*a, *b, sent.load(), answered.load());
        CHECK(sent.load() != answered.load());
        CHECK(about(*a, 2)->large_in != 0);
    }
}

TEST("a connection that falls in the middle of a large answer loses it for both, and the next one arrives") {
    for (const std::string& scheme : kSchemes) {
        auto a = make_node(narrow(1, scheme)), b = make_node(narrow(2, scheme));
        Held held;
        Handler handler(*b, kKind, held.on_request());
        introduce(*a, *b);
        constexpr std::size_t kLarge = 2 << 20;
        Answerers answerers(held, 2, [](const Question& question) {
            const Outcome outcome = question.answer(answer_to(question, kLarge));
            if (!outcome.ok()) CHECK_SAYS(outcome.code == Code::closed || outcome.code == Code::unreachable, explain(outcome));
        });
        for (std::uint64_t round = 0; round < check::count(12, 500); ++round) {
            std::vector<std::unique_ptr<Request>> requests;
            for (std::uint32_t t = 0; t < 3; ++t) {
                requests.push_back(std::make_unique<Request>(*a, 2, kKind));
                CHECK_OK(requests.back()->send(stamped(t, round, 64), patiently()));
            }
            CHECK(check::soon([&] { return a->counters().large_in_use != 0 || requests[0]->pending()->done(); }));
            Node& node = round % 2 == 0 ? *a : *b;
            const std::uint16_t other = round % 2 == 0 ? 2 : 1;
            CHECK(node.remove_peer(other));
            for (std::uint32_t t = 0; t < 3; ++t) {
                CHECK(requests[t]->wait(patiently()));
                if (requests[t]->state() == State::answered) {
                    check_answer(requests[t]->body(), t, round, kLarge);
                } else {
                    CHECK_EQUAL(requests[t]->state(), State::lost);
                }
            }
            node.add_peer(other, (round % 2 == 0 ? *b : *a).address());
            // The removal may still be under way and take the first attempts with it.
            CHECK(check::soon([&] {
                Request again(*a, 2, kKind);
                if (!again.send(stamped(9, round, 64), patiently()).ok()) return false;
                CHECK(again.wait(patiently()));
                if (again.state() != State::answered) return false;
                check_answer(again.body(), 9, round, kLarge);
                return true;
            }));
        }
        answerers.finish();
        check_at_rest(*a);
        check_at_rest(*b);
    }
}

TEST("an answer that waits for its way back ends when the one who asked is gone") {
    const int silent = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const std::string address = fresh_address("unix");
    const Endpoint endpoint = Endpoint::unix_path(address.substr(7));
    CHECK_EQUAL(bind(silent, reinterpret_cast<const sockaddr*>(&endpoint.storage), endpoint.length), 0);
    CHECK_EQUAL(listen(silent, 8), 0);
    NodeOptions left = options(1), right = options(2);
    left.advertise = address;  // the answerer dials there, and nobody ever says a word
    right.connect_timeout = check::patience(600 * kSecond);
    auto a = make_node(left), b = make_node(right);
    std::atomic<bool> entered{false}, answered{false};
    Handler handler(*b, kKind, OnRequest([&](const Question& question) {
        entered = true;
        question.answer("late");
        answered = true;
    }));
    a->add_peer(2, b->address());
    Request request(*a, 2, kKind);
    CHECK_OK(request.send("?", patiently()));
    CHECK(check::soon([&] { return entered.load(); }));
    CHECK(a->close(0));
    CHECK(check::soon([&] { return answered.load(); }));
    ::close(silent);
}

TEST("connections that are given back lose no answer and no message") {
    constexpr std::uint16_t kPeers = 6;
    NodeOptions hub_options = options(1);
    hub_options.max_connections = 2;
    auto hub = make_node(hub_options);
    std::vector<std::unique_ptr<Node>> others;
    std::vector<std::unique_ptr<Handler>> handlers;
    const OnRequest echo([](const Question& question) { question.answer(question.text); });
    handlers.push_back(std::make_unique<Handler>(*hub, kKind, echo));
    for (std::uint16_t id = 2; id < 2 + kPeers; ++id) {
        NodeOptions other = options(id);
        if (id % 2 == 0) other.max_connections = 1;  // both ends may ask at once
        others.push_back(make_node(other));
        handlers.push_back(std::make_unique<Handler>(*others.back(), kKind, echo));
        introduce(*hub, *others.back());
    }
    const auto rounds = static_cast<std::uint32_t>(check::count(300, 30'000));
    std::vector<std::thread> threads;
    for (std::uint32_t t = 0; t < 3; ++t) {
        threads.emplace_back([&, t] {
            for (std::uint32_t round = 0; round < rounds; ++round) {
                const std::uint16_t other = static_cast<std::uint16_t>(2 + (round * 7 + t * 3) % kPeers);
                Node& from = t == 0 ? *others[other - 2u] : *hub;
                Request request(from, t == 0 ? 1 : other, kKind);
                const std::string question = stamped(t, round, 64);
                CHECK_OK(request.send(question, patiently()));
                CHECK(request.wait(patiently()));
                CHECK_EQUAL(request.state(), State::answered);
                CHECK(request.body() == question);
            }
        });
    }
    join(threads);
    CHECK(hub->counters().dismissed > 0);
    std::uint64_t losses = 0;
    for (const PeerStatistics& peer : hub->statistics()) losses += peer.losses;
    CHECK_EQUAL(losses, 0u);
    check_at_rest(*hub);
}

// Whoever wakes a leader holds no lock, and may come when the lead is over. What it writes to then must not be a
// descriptor that was closed, and is somebody else's by now.
TEST("descriptors are as many as leaders, however many peers come and go, and nobody else's is written to") {
    auto hub = make_node(options(1));
    Handler handler(*hub, kKind, [](const Question& question) { (void)question.answer(question.text); });
    constexpr std::uint32_t kThreads = 3;
    const auto rounds = static_cast<std::uint16_t>(check::count(40, 1000));
    std::atomic<std::uint16_t> next{2};
    std::atomic<bool> over{false};
    std::vector<std::thread> threads, others;
    // Takes the lowest number that is free, all the time: one that a peer has given back, if any.
    others.emplace_back([&] {
        while (!over.load()) {
            int mine[8];
            for (int& fd : mine) CHECK((fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) >= 0);
            pass(300);
            for (const int fd : mine) {
                std::uint64_t written;
                CHECK_EQUAL(read(fd, &written, sizeof written), -1);
                close(fd);
            }
        }
    });
    // Wakes all whom the hub has ever met.
    others.emplace_back([&] {
        while (!over.load()) {
            for (std::uint16_t id = 2; id < next.load(); ++id) {
                if (Peer* peer = hub->find_peer(id)) peer->wake_leader();
            }
        }
    });
    for (std::uint32_t t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
            for (std::uint16_t round = 0; round < rounds; ++round) {
                const std::uint16_t id = next.fetch_add(1);
                auto client = make_node(options(id));
                Handler echo(*client, kKind, [](const Question& question) { (void)question.answer(question.text); });
                introduce(*hub, *client);
                for (std::uint32_t i = 0; i < 4; ++i) {
                    Node& from = i % 2 == 0 ? *client : *hub;
                    Request request(from, i % 2 == 0 ? 1 : id, kKind);
                    const std::string question = stamped(t, i, 64);
                    CHECK_OK(request.send(question, patiently()));
                    CHECK(request.wait(patiently()));
                    CHECK_EQUAL(request.state(), State::answered);
                    CHECK(request.body() == question);
                }
                echo.close();
                client->close(check::patience(5 * kSecond));
            }
        });
    }
    join(threads);
    over.store(true);
    join(others);
    const std::size_t wakes = hub->lead_wakes();
    CHECK(wakes >= 1);
    // Those who ask here, and the scheduler's.
    CHECK(wakes <= kThreads + 32);
    check_at_rest(*hub);
}
