// Shares of the time: the ready queue against a model, the scheduler against the clock of the processor,
// and the classes that durations are counted in.
//
// Forbidden: a task that gets less than its share while it has work; time that is wasted while somebody
// wants it; a task without a share that never runs; credits that are renewed while somebody with work has
// some; work that nobody runs because a share changed at the wrong moment.
//
// Shares are measured in processor time: a machine that gives this process little of it makes these tests
// slow, and not wrong.
#include <algorithm>
#include <deque>
#include <memory>
#include <numeric>

#include "base/histogram.hpp"
#include "check.hpp"
#include "scheduler/ready_queue.hpp"
#include "scheduler/scheduler.hpp"

using namespace antiphon;

namespace {

constexpr Nanos kPeriod = 10 * kMillisecond;

class Idle : public Task {
   public:
    bool run_slice(Nanos) override { return false; }
};

// --- the queue's model: a list that is searched from end to end ---------------------------------------

class Model {
   public:
    enum class Place { away, queued, running };
    struct Entry {
        Place place = Place::away;
        double share = 0;
        Nanos credits = 0;
        std::uint64_t round = 0, ticket = 0;
    };

    Model(std::size_t tasks, int buckets, bool penalty)
        : entries(tasks), buckets_(buckets), step_(kPeriod / buckets), penalty_(penalty) {}

    std::vector<Entry> entries;
    std::uint64_t round = 0;
    Nanos rest = kPeriod;

    double shares() const {
        return std::accumulate(entries.begin(), entries.end(), 0.0,
                               [](double sum, const Entry& entry) { return sum + entry.share; });
    }
    std::size_t size() const {
        return static_cast<std::size_t>(std::count_if(entries.begin(), entries.end(), [](const Entry& entry) {
            return entry.place == Place::queued;
        }));
    }
    bool shared() const {
        return std::any_of(entries.begin(), entries.end(), [](const Entry& entry) { return entry.share > 0; });
    }
    Nanos allotment(const Entry& entry) const { return static_cast<Nanos>(entry.share * kPeriod); }
    // What is the same to the queue; 0: none left.
    Nanos bucket(Nanos credits) const {
        return credits <= 0 ? 0 : std::min<Nanos>(buckets_, (credits + step_ - 1) / step_);
    }
    void renew(Entry& entry) const {
        if (entry.round == round) return;
        const Nanos owed = penalty_ ? std::min<Nanos>(0, entry.credits) : 0;
        entry.credits = std::max<Nanos>(0, allotment(entry) + owed);
        entry.round = round;
    }
    void push(std::size_t at) {
        Entry& entry = entries[at];
        entry.place = Place::queued;
        entry.ticket = ++tickets_;
        if (entry.share > 0) renew(entry);
    }
    void set_share(std::size_t at, double share) {
        Entry& entry = entries[at];
        // Added up in the same order as in the queue: a step's border may lie between two roundings.
        running_ -= entry.share;
        entry.share = share;
        running_ += share;
        if (!shared()) running_ = 0;
        entry.credits = 0;
        entry.round = round - 1;
        if (entry.place == Place::queued) push(at);
    }
    Nanos charge(std::size_t at, Nanos used) {
        Entry& entry = entries[at];
        if (entry.share <= 0) {
            rest -= used;
            return 0;
        }
        if (entry.round != round) {
            used = std::max<Nanos>(0, used - std::max<Nanos>(0, entry.credits));
            entry.credits = 0;
            renew(entry);
        }
        const Nanos granted = std::max(step_, entry.credits);
        entry.credits -= used;
        return used > granted + step_ ? used - granted : 0;
    }
    bool anybody_has_credits() const {
        return std::any_of(entries.begin(), entries.end(), [&](const Entry& entry) {
            return entry.place == Place::queued && (entry.share > 0 ? entry.credits : rest) > 0;
        });
    }
    // Who is next: of those with a share and credits the one with the most, in steps; then those without a
    // share; among equals who came first.
    std::size_t pop() {
        if (size() == 0) return entries.size();
        for (int i = 0; i < 2 && !anybody_has_credits(); ++i) {
            ++round;
            const Nanos owed = penalty_ ? std::min<Nanos>(0, rest) : 0;
            rest = std::max<Nanos>(0, std::max(step_, static_cast<Nanos>((1 - running_) * kPeriod)) + owed);
            // In the order in which they lost their credits, which is their order from now on.
            std::vector<std::size_t> those;
            for (std::size_t at = 0; at < entries.size(); ++at) {
                if (entries[at].place == Place::queued && entries[at].share > 0) those.push_back(at);
            }
            std::sort(those.begin(), those.end(), [&](std::size_t a, std::size_t b) { return entries[a].ticket < entries[b].ticket; });
            for (const std::size_t at : those) push(at);
        }
        std::size_t best = entries.size();
        auto rank = [&](const Entry& entry) -> Nanos {
            if (entry.share <= 0) return rest > 0 ? 2 : 0;
            return entry.credits > 0 ? 2 + bucket(entry.credits) : 1;
        };
        auto before = [&](const Entry& a, const Entry& b) {
            return rank(a) != rank(b) ? rank(a) > rank(b) : a.ticket < b.ticket;
        };
        for (std::size_t at = 0; at < entries.size(); ++at) {
            if (entries[at].place != Place::queued) continue;
            if (best == entries.size() || before(entries[at], entries[best])) best = at;
        }
        if (best != entries.size()) entries[best].place = Place::running;
        return best;
    }

   private:
    const Nanos buckets_, step_;
    const bool penalty_;
    double running_ = 0;
    std::uint64_t tickets_ = 0;
};

void compare_with_model(int buckets, bool penalty, std::uint64_t stream, std::uint64_t steps) {
    constexpr std::size_t kTasks = 24;
    auto random = check::random(stream);
    auto chance = [&](std::uint64_t percent) { return check::below(random, 100) < percent; };
    std::vector<Idle> tasks(kTasks);
    ReadyQueue queue(kPeriod, buckets, penalty);
    Model model(kTasks, buckets, penalty);
    using Place = Model::Place;
    auto some = [&](Place place) {
        std::vector<std::size_t> those;
        for (std::size_t at = 0; at < kTasks; ++at) {
            if (model.entries[at].place == place) those.push_back(at);
        }
        return those.empty() ? kTasks : those[check::below(random, those.size())];
    };
    auto push = [&](std::size_t at) {
        queue.push(tasks[at]);
        model.push(at);
    };
    for (std::uint64_t i = 0; i < steps; ++i) {
        const std::uint64_t what = check::below(random, 100);
        if (what < 35) {
            if (const std::size_t at = some(Place::away); at != kTasks) push(at);
        } else if (what < 60) {
            const bool had = model.anybody_has_credits();
            const std::uint64_t renewals = queue.renewals();
            Task* task = queue.pop();
            const std::size_t wanted = model.pop();
            if (wanted == kTasks) {
                CHECK(task == nullptr);
            } else {
                CHECK_SAYS(task == &tasks[wanted], "another one was next, at step " + std::to_string(i));
                CHECK(queue.allowance(*task) >= kPeriod / buckets);
                CHECK(!had || queue.renewals() == renewals);
            }
        } else if (what < 85) {
            const std::size_t at = some(Place::running);
            if (at == kTasks) continue;
            // Now and then far more than it has.
            const Nanos used = static_cast<Nanos>(check::below(random, chance(10) ? 3 * kPeriod : kPeriod / 4));
            CHECK_EQUAL(queue.charge(tasks[at], used), model.charge(at, used));
            // Who owes something comes back at once: it pays for the period that follows.
            if (model.entries[at].credits < 0 || chance(70)) {
                push(at);
            } else {
                model.entries[at].place = Place::away;
            }
        } else if (what < 95) {
            const std::size_t at = check::below(random, kTasks);
            const double room = 1 - model.shares() + model.entries[at].share;
            const double share = chance(30)   ? 0
                                 : chance(10) ? room  // everything that there is
                                              : room * static_cast<double>(1 + check::below(random, 50)) / 100;
            if (share != 0 && share < 0.001) continue;
            queue.set_share(tasks[at], share);
            model.set_share(at, share);
        } else {
            const std::size_t at = check::below(random, kTasks);
            queue.erase(tasks[at]);  // nothing happens if it is not in there
            if (model.entries[at].place == Place::queued) model.entries[at].place = Place::away;
        }
        CHECK_EQUAL(queue.size(), model.size());
        CHECK_EQUAL(queue.empty(), model.size() == 0);
        CHECK_EQUAL(queue.shared(), model.shared());
        CHECK_EQUAL(queue.renewals(), model.round);
        CHECK(std::abs(queue.shares() - model.shares()) < 1e-9);
    }
    for (std::size_t at = 0; at < kTasks; ++at) queue.set_share(tasks[at], 0);
    CHECK_EQUAL(queue.shares(), 0.0);
    CHECK(!queue.shared());
    for (std::size_t left = queue.size(); left != 0; --left) CHECK(queue.pop() != nullptr);
    CHECK(queue.pop() == nullptr);
}

// --- tasks that measure what they get ------------------------------------------------------------------

// Has work for ever, or while it is on.
class Busy : public Task {
   public:
    explicit Busy(double share_ = 0) : share(share_) {}
    bool run_slice(Nanos until) override {
        CHECK(!inside_.exchange(true, std::memory_order_acquire));
        const Nanos began = thread_cpu_ns();
        do {
            if (burn != 0) {
                while (thread_cpu_ns() - began < burn) {
                }
            }
        } while (burn == 0 && now_ns() < until && on.load(std::memory_order_relaxed));
        used.fetch_add(thread_cpu_ns() - began, std::memory_order_relaxed);
        slices.fetch_add(1, std::memory_order_relaxed);
        inside_.store(false, std::memory_order_release);
        return on.load(std::memory_order_seq_cst);
    }

    const double share;
    Nanos burn = 0;  // so much per slice, whatever it may
    std::atomic<bool> on{true};
    std::atomic<Nanos> used{0};
    std::atomic<std::uint64_t> slices{0};

   private:
    std::atomic<bool> inside_{false};
};

using Tasks = std::vector<std::unique_ptr<Busy>>;

Tasks with_shares(const std::vector<double>& shares) {
    Tasks tasks;
    for (const double share : shares) tasks.push_back(std::make_unique<Busy>(share));
    return tasks;
}

Nanos all_used(const Tasks& tasks) {
    return std::accumulate(tasks.begin(), tasks.end(), Nanos{0},
                           [](Nanos sum, const auto& task) { return sum + task->used.load(); });
}

// Lets them run for so much processor time, after a start in which not all of them are there yet. What
// part of the time each has got.
std::vector<double> parts(Scheduler& scheduler, const Tasks& tasks, Nanos cpu) {
    for (const auto& task : tasks) {
        if (task->share > 0) CHECK(scheduler.set_share(*task, task->share));
    }
    for (const auto& task : tasks) {
        if (task->on.load()) scheduler.notify(*task);
    }
    const Nanos until = now_ns() + check::patience(100 * kSecond);
    auto spend = [&](Nanos much) {
        const Nanos first = all_used(tasks);
        while (all_used(tasks) - first < much && now_ns() < until) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        return all_used(tasks) - first;
    };
    spend(3 * kPeriod);
    std::vector<Nanos> before;
    for (const auto& task : tasks) before.push_back(task->used.load());
    const Nanos spent = spend(cpu);
    std::vector<double> got;
    for (std::size_t i = 0; i < tasks.size(); ++i) {
        got.push_back(static_cast<double>(tasks[i]->used.load() - before[i]));
    }
    CHECK_SAYS(spent >= 25 * kPeriod, "this machine had no time for us");
    const double sum = std::accumulate(got.begin(), got.end(), 0.0);
    for (double& part : got) part /= sum;
    return got;
}

// Of the processor: a sanitizer does not make it less.
Nanos some_time() { return (check::full() ? 5000 : 600) * kMillisecond; }

// 3 percent of the period; of small shares, 15 percent of the share.
void check_parts(const std::vector<double>& got, const std::vector<double>& wanted) {
    for (std::size_t i = 0; i < got.size(); ++i) {
        const double most = std::min(0.03, 0.15 * wanted[i] + 0.005);
        CHECK_SAYS(std::abs(got[i] - wanted[i]) <= most,
                   "task " + std::to_string(i) + " of " + std::to_string(got.size()) + " got " +
                       std::to_string(got[i]) + " and not " + std::to_string(wanted[i]));
    }
}

// Units that are counted in and out, one thread at a time.
class Counter : public Task {
   public:
    explicit Counter(Scheduler& scheduler) : scheduler_(scheduler) {}
    void add() {
        waiting_.fetch_add(1, std::memory_order_release);
        scheduler_.notify(*this);
    }
    bool run_slice(Nanos until) override {
        CHECK(!inside_.exchange(true, std::memory_order_acquire));
        bool more = false;
        while (waiting_.load(std::memory_order_acquire) != 0) {
            if (now_ns() >= until) {
                more = true;
                break;
            }
            waiting_.fetch_sub(1, std::memory_order_acquire);
            ++plain;
            if (slow != 0 && plain % slow == 0) {
                for (const Nanos over = now_ns() + 3 * kSlice; now_ns() < over;) {
                }
            }
        }
        inside_.store(false, std::memory_order_release);
        return more;
    }
    std::uint64_t handled() const override { return plain; }

    std::uint64_t plain = 0;
    std::uint64_t slow = 0;  // every so often a unit that lets another thread in beside it

   private:
    Scheduler& scheduler_;
    std::atomic<std::uint64_t> waiting_{0};
    std::atomic<bool> inside_{false};
};

}  // namespace

// --- the queue -----------------------------------------------------------------------------------------

TEST("the queue hands out tasks as a list that is searched for the most credits") {
    const std::uint64_t steps = check::count(40'000, 1'000'000);
    std::uint64_t stream = 0;
    for (const int buckets : {2, 10, 100, 1000}) {
        for (const bool penalty : {false, true}) compare_with_model(buckets, penalty, ++stream, steps);
    }
}

TEST("without shares the queue is a queue") {
    ReadyQueue queue(kPeriod, 100, false);
    std::vector<Idle> tasks(100);
    for (Idle& task : tasks) queue.push(task);
    for (std::size_t round = 0; round < 3; ++round) {
        for (Idle& task : tasks) {
            CHECK(queue.pop() == &task);
            queue.charge(task, kPeriod);
            queue.push(task);
        }
    }
    CHECK(!queue.shared());
    CHECK_EQUAL(queue.size(), tasks.size());
}

TEST("a task that was erased is not handed out, wherever it was") {
    for (const double share : {0.0, 0.2}) {
        ReadyQueue queue(kPeriod, 100, false);
        std::vector<Idle> tasks(5);
        for (Idle& task : tasks) {
            queue.set_share(task, share);
            queue.push(task);
        }
        queue.erase(tasks[0]);
        queue.erase(tasks[2]);
        queue.erase(tasks[2]);
        queue.erase(tasks[4]);
        CHECK_EQUAL(queue.size(), 2);
        CHECK(queue.pop() == &tasks[1]);
        CHECK(queue.pop() == &tasks[3]);
        CHECK(queue.pop() == nullptr);
    }
}

TEST("who overran pays in the next period where there is a penalty, and nowhere else") {
    for (const bool penalty : {false, true}) {
        ReadyQueue queue(kPeriod, 100, penalty);
        Idle one, other;
        queue.set_share(one, 0.5);
        queue.set_share(other, 0.5);
        queue.push(one);
        queue.push(other);
        CHECK(queue.pop() == &one);
        CHECK_EQUAL(queue.charge(one, kPeriod * 8 / 10), kPeriod * 3 / 10);
        queue.push(one);
        CHECK(queue.pop() == &other);
        CHECK_EQUAL(queue.charge(other, kPeriod / 2), 0);
        queue.push(other);
        // A new period; with a penalty the first has 0.2 of it left, and the other comes before it.
        Task* next = queue.pop();
        CHECK_EQUAL(queue.renewals(), 1);
        CHECK(next == (penalty ? static_cast<Task*>(&other) : &one));
        CHECK_EQUAL(queue.allowance(one), penalty ? kPeriod * 2 / 10 : kPeriod / 2);
    }
}

TEST("a debt of many periods stops nobody for ever") {
    ReadyQueue queue(kPeriod, 100, true);
    Idle one;
    queue.set_share(one, 0.1);
    for (int i = 0; i < 100; ++i) {
        queue.push(one);
        CHECK(queue.pop() == &one);
        CHECK(queue.allowance(one) > 0);
        queue.charge(one, 50 * kPeriod);
    }
}

// --- the scheduler -------------------------------------------------------------------------------------

TEST("two busy tasks get what their shares say") {
    for (const double share : {0.5, 0.8}) {
        const std::vector<double> shares{share, 1 - share};
        const Tasks tasks = with_shares(shares);
        Scheduler scheduler(1, 1, {});
        check_parts(parts(scheduler, tasks, some_time()), shares);
        CHECK(scheduler.renewals() > 0);
        CHECK(scheduler.stop(kNever));
    }
}

TEST("unequal shares of a few tasks are kept") {
    const std::vector<double> shares{0.45, 0.25, 0.15, 0.1, 0.05};
    const Tasks tasks = with_shares(shares);
    Scheduler scheduler(1, 1, {});
    check_parts(parts(scheduler, tasks, some_time()), shares);
    CHECK(scheduler.stop(kNever));
}

TEST("the shares of fifty tasks are kept") {
    auto random = check::random(50);
    std::vector<double> shares;
    for (int i = 0; i < 50; ++i) shares.push_back(static_cast<double>(20 + check::below(random, 80)));
    const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
    for (double& share : shares) share /= sum * (1 + 1e-12);
    const Tasks tasks = with_shares(shares);
    Scheduler scheduler(1, 1, {});
    check_parts(parts(scheduler, tasks, 2 * some_time()), shares);
    CHECK(scheduler.stop(kNever));
}

TEST("time that nobody wants goes to whoever has work") {
    // The third one holds half of the time, and has nothing to do.
    Tasks tasks = with_shares({0.2, 0.3, 0.5});
    tasks[2]->on = false;
    Scheduler scheduler(1, 1, {});
    const std::vector<double> got = parts(scheduler, tasks, some_time());
    check_parts(got, {0.4, 0.6, 0.0});
    // A period is over when the two have used their half: nobody waits for the rest of it.
    const auto halves = static_cast<double>(all_used(tasks)) / (0.5 * kPeriod);
    CHECK(static_cast<double>(scheduler.renewals()) > 0.8 * halves);
    CHECK(scheduler.stop(kNever));
}

TEST("tasks without a share divide what the shares leave") {
    const Tasks tasks = with_shares({0.5, 0.2, 0, 0, 0});
    Scheduler scheduler(1, 1, {});
    // They take turns by the clock: who is not on a core for a part of its turn has less of it. On a busy
    // machine it takes more turns until that evens out.
    double least = 0;
    const Nanos until = now_ns() + check::patience(60 * kSecond);
    do {
        const std::vector<double> got = parts(scheduler, tasks, some_time());
        check_parts({got[0], got[1], got[2] + got[3] + got[4]}, {0.5, 0.2, 0.3});
        least = std::min({got[2], got[3], got[4]});
    } while (least <= 0.04 && now_ns() < until);
    CHECK_SAYS(least > 0.04, std::to_string(least));
    CHECK(scheduler.stop(kNever));
}

TEST("tasks without a share run even where the shares sum to one") {
    const Tasks tasks = with_shares({0.6, 0.4, 0, 0});
    Scheduler scheduler(1, 1, {});
    const std::vector<double> got = parts(scheduler, tasks, some_time());
    // One step of a hundred for all of them, in turn.
    check_parts({got[0], got[1]}, {0.6, 0.4});
    CHECK(got[2] > 0.001 && got[3] > 0.001);
    CHECK(got[2] + got[3] < 0.04);
    CHECK(scheduler.stop(kNever));
}

TEST("a task that keeps to its share does not wait for longer than a period") {
    Tasks tasks = with_shares({0.9});
    Scheduler scheduler(1, 1, {});
    Nanos longest = 0, asked = 0;
    std::atomic<std::uint64_t> answered{0};
    class Asked : public Task {
       public:
        std::function<void()> call;
        bool run_slice(Nanos) override { return call(), false; }
    } now_and_then;
    now_and_then.call = [&] {
        longest = std::max(longest, all_used(tasks) - asked);
        answered.fetch_add(1);
    };
    CHECK(scheduler.set_share(now_and_then, 0.1));
    CHECK(scheduler.set_share(*tasks[0], 0.9));
    scheduler.notify(*tasks[0]);
    const std::uint64_t rounds = check::count(100, 2000);
    for (std::uint64_t i = 0; i < rounds; ++i) {
        asked = all_used(tasks);
        scheduler.notify(now_and_then);
        CHECK(check::soon([&] { return answered.load() == i + 1; }));
    }
    // What the other used meanwhile, and a slice that was not counted yet when we asked.
    CHECK_SAYS(longest <= kPeriod + 2 * kSlice, std::to_string(longest));
    CHECK(scheduler.stop(kNever));
}

TEST("a task without a share ends its slice when one with a share comes, and never otherwise") {
    class Humble : public Task {
       public:
        bool run_slice(Nanos until) override {
            const Nanos began = thread_cpu_ns();
            while (now_ns() < until && !outranked()) used.store(before + thread_cpu_ns() - began);
            if (outranked()) outrankings.fetch_add(1);
            before += thread_cpu_ns() - began;
            return true;
        }
        Nanos before = 0;
        std::atomic<Nanos> used{0};
        std::atomic<std::uint64_t> outrankings{0};
    } humble;
    class First : public Task {
       public:
        bool run_slice(Nanos) override {
            CHECK(!outranked());
            ran.fetch_add(1);
            return false;
        }
        std::atomic<std::uint64_t> ran{0};
    } first;
    Scheduler scheduler(1, 1, {});
    CHECK(scheduler.set_share(first, 0.5));
    scheduler.notify(humble);
    CHECK(check::soon([&] { return humble.used.load() > 20 * kMillisecond; }));
    CHECK_EQUAL(humble.outrankings.load(), 0);
    const std::uint64_t rounds = check::count(200, 5000);
    std::uint64_t quick = 0;
    for (std::uint64_t i = 1; i <= rounds; ++i) {
        const Nanos asked = humble.used.load();
        scheduler.notify(first);
        CHECK(check::soon([&] { return first.ran.load() == i; }));
        // Seldom anything but the end of the slice that ran; the look at it is later still.
        quick += humble.used.load() - asked < kSlice;
    }
    // But for those that came between two slices.
    CHECK_SAYS(humble.outrankings.load() * 2 > rounds, std::to_string(humble.outrankings.load()));
    CHECK(humble.outrankings.load() <= rounds);
    CHECK_SAYS(quick * 2 > rounds, std::to_string(quick));
    CHECK(scheduler.stop(kNever));
}

TEST("overruns are counted, and paid for where there is a penalty") {
    double got[2];
    for (const bool penalty : {false, true}) {
        // One millisecond per period is its part, and it takes three every time.
        Tasks tasks = with_shares({0.1, 0.9});
        tasks[0]->burn = 3 * kMillisecond;
        Schedule schedule;
        schedule.penalty = penalty;
        Scheduler scheduler(1, 1, {}, schedule);
        got[penalty] = parts(scheduler, tasks, some_time())[0];
        CHECK(scheduler.stop(kNever));
        const Meter& over = tasks[0]->meter;
        // All slices but those that found credit of another period.
        CHECK(over.overruns.load() * 10 >= over.slices.load() * 8);
        CHECK(over.longest_overrun.load() >= 1900 * kMicrosecond);
        const Meter& kept = tasks[1]->meter;
        CHECK(kept.overruns.load() * 4 <= kept.slices.load());  // those are the machine's
        CHECK_EQUAL(over.slices.load(), tasks[0]->slices.load());
        CHECK(std::abs(over.used_sum.load() / static_cast<double>(tasks[0]->used.load()) - 1) < 0.05);
    }
    CHECK_SAYS(got[0] > 0.2, std::to_string(got[0]));             // 3 of 12
    CHECK_SAYS(got[1] < 0.8 * got[0], std::to_string(got[1]));  // 3 of 21
}

TEST("how many threads run at once, and for how much of it, is measured while somebody has a share") {
    // Long against a slice, so that a second thread enters beside the first.
    static constexpr Nanos kLong = 30 * kMillisecond, kLooks = 3 * kMillisecond;
    struct Sleeper : Task {
        bool run_slice(Nanos) override {
            if (blocks) {
                Scheduler::Blocked blocked;
                // As a call of ours that looks for what it waits for, within one that waits for room.
                Scheduler::Blocked again;
                const Scheduler::Unpaid unpaid;
                for (const Nanos before = thread_cpu_ns(); thread_cpu_ns() - before < kLooks;) {
                }
                std::this_thread::sleep_for(std::chrono::nanoseconds(kLong));
            } else {
                std::this_thread::sleep_for(std::chrono::nanoseconds(kLong));
            }
            return ++turns < 6;
        }
        std::atomic<int> turns{0};
        bool blocks = false;
    };
    Scheduler scheduler(2, 8, {});
    auto run = [&](bool blocks, double share) {
        Sleeper one, other;
        one.blocks = other.blocks = blocks;
        CHECK(share == 0 || scheduler.set_share(one, share));
        scheduler.notify(one);
        scheduler.notify(other);
        CHECK(check::soon([&] { return one.turns.load() == 6 && other.turns.load() == 6; }));
        CHECK(scheduler.forget(one, kNever));
        CHECK(scheduler.forget(other, kNever));
    };
    run(false, 0);
    CHECK_EQUAL(scheduler.usage().worked, 0);
    CHECK_EQUAL(scheduler.usage().engaged, 0);
    CHECK_EQUAL(scheduler.usage().lasted, 0);
    CHECK_EQUAL(scheduler.usage().used, 0);

    const Nanos began = now_ns();
    run(false, 0.5);
    const Nanos elapsed = now_ns() - began;
    const Scheduler::Usage slept = scheduler.usage();
    CHECK(slept.worked <= elapsed);
    CHECK(slept.worked >= 6 * kLong);
    CHECK(slept.engaged <= 2 * slept.worked);
    CHECK_SAYS(slept.engaged * 10 > slept.worked * 13, std::to_string(slept.engaged) + " of " + std::to_string(slept.worked));
    CHECK(slept.lasted >= 12 * kLong);
    CHECK(slept.used * 2 < slept.lasted);
    CHECK_EQUAL(scheduler.usage().worked, slept.worked);  // nobody is at work

    // Those who wait in our own calls are not at work either.
    run(true, 0.5);
    const Scheduler::Usage blocked = scheduler.usage();
    CHECK_SAYS(blocked.lasted - slept.lasted < 6 * kLong, std::to_string(blocked.lasted - slept.lasted));
    CHECK(blocked.engaged - slept.engaged < 6 * kLong);
    CHECK_SAYS(blocked.worked - slept.worked < 6 * kLong, std::to_string(blocked.worked - slept.worked));
    CHECK_SAYS(blocked.used - slept.used < 6 * kLooks, std::to_string(blocked.used - slept.used));  // of 12
    CHECK(scheduler.stop(kNever));
}

TEST("no more can be given away than there is") {
    Scheduler scheduler(1, 1, {});
    std::vector<Idle> tasks(12);
    for (std::size_t i = 0; i < 10; ++i) CHECK(scheduler.set_share(tasks[i], 0.1));  // 0.1 is no binary number
    CHECK(!scheduler.set_share(tasks[10], 0.01));
    CHECK(std::abs(scheduler.shares() - 1) < 1e-9);
    CHECK(scheduler.set_share(tasks[0], 0.05));
    CHECK(scheduler.set_share(tasks[10], 0.05));
    CHECK(!scheduler.set_share(tasks[0], 0.06));
    CHECK(scheduler.forget(tasks[1], kNever));
    CHECK(!scheduler.set_share(tasks[1], 0.01));  // it is not to come back
    CHECK(!scheduler.set_share(tasks[1], 0));
    CHECK(scheduler.set_share(tasks[11], 0.1));
    for (Idle& task : tasks) CHECK(scheduler.forget(task, kNever));
    CHECK_EQUAL(scheduler.shares(), 0.0);
    CHECK(scheduler.stop(kNever));
}

TEST("no unit of work is lost while shares change, tasks overrun and several threads notify") {
    const std::uint64_t each = check::count(30'000, 1'000'000);
    for (const bool penalty : {false, true}) {
        Schedule schedule;
        schedule.period = kMillisecond;  // many renewals
        schedule.penalty = penalty;
        Scheduler scheduler(3, 8, {}, schedule);
        constexpr std::size_t kTasks = 12;
        std::vector<std::unique_ptr<Counter>> tasks;
        for (std::size_t i = 0; i < kTasks; ++i) {
            tasks.push_back(std::make_unique<Counter>(scheduler));
            // Some overrun now and then: others run beside them, and credits are renewed meanwhile.
            if (i % 4 == 0) tasks.back()->slow = std::max<std::uint64_t>(2, each / 8);
        }
        std::atomic<bool> over{false};
        std::vector<std::thread> notifiers, givers;
        for (std::uint64_t n = 0; n < 4; ++n) {
            notifiers.emplace_back([&, n] {
                auto random = check::random(100 + n);
                for (std::uint64_t i = 0; i < each; ++i) {
                    tasks[check::below(random, kTasks)]->add();
                    if (check::below(random, 50) == 0) std::this_thread::yield();
                }
            });
        }
        for (std::uint64_t n = 0; n < 2; ++n) {
            givers.emplace_back([&, n] {
                auto random = check::random(200 + n);
                while (!over.load()) {
                    const double share = static_cast<double>(check::below(random, 4)) / 10;
                    scheduler.set_share(*tasks[check::below(random, kTasks)], share);
                    const double sum = scheduler.shares();
                    CHECK_SAYS(sum > -1e-9 && sum < 1 + 1e-6, std::to_string(sum));
                    std::this_thread::sleep_for(std::chrono::microseconds(50));
                }
            });
        }
        for (std::thread& notifier : notifiers) notifier.join();
        CHECK(scheduler.wait_idle(now_ns() + check::patience(20 * kSecond)));
        over = true;
        for (std::thread& giver : givers) giver.join();
        std::uint64_t total = 0;
        for (const auto& task : tasks) {
            total += task->plain;
            CHECK_EQUAL(task->meter.events.load(), task->plain);
        }
        CHECK_EQUAL(total, 4 * each);
        for (const auto& task : tasks) CHECK(scheduler.forget(*task, kNever));
        CHECK_EQUAL(scheduler.shares(), 0.0);
        CHECK(scheduler.stop(kNever));
    }
}

TEST("a task can be forgotten while others give it a share") {
    const std::uint64_t rounds = check::count(300, 10'000);
    Scheduler scheduler(2, 4, {});
    Tasks background = with_shares({0.3, 0});
    CHECK(scheduler.set_share(*background[0], 0.3));
    for (const auto& task : background) scheduler.notify(*task);
    for (std::uint64_t i = 0; i < rounds; ++i) {
        auto task = std::make_unique<Busy>();
        std::atomic<bool> forgetting{false}, over{false};
        std::thread giver([&] {
            bool refused = false;
            for (std::uint64_t n = 0; !over.load(); ++n) {
                const bool given = scheduler.set_share(*task, static_cast<double>(n % 5) / 10);
                CHECK(given || forgetting.load());  // there is always so much left
                CHECK(!given || !refused);          // and no way back
                refused = !given;
            }
        });
        scheduler.notify(*task);
        if (i % 3 != 0) {
            const Nanos until = now_ns() + static_cast<Nanos>(i % 7) * 100 * kMicrosecond;
            while (now_ns() < until) std::this_thread::yield();
        }
        forgetting = true;
        CHECK(scheduler.forget(*task, kNever));
        const std::uint64_t slices = task->slices.load();
        CHECK(!scheduler.set_share(*task, 0.1));
        over = true;
        giver.join();
        scheduler.notify(*task);  // nothing comes of it
        CHECK_EQUAL(task->slices.load(), slices);
        CHECK(std::abs(scheduler.shares() - 0.3) < 1e-9);
    }
    for (const auto& task : background) {
        task->on = false;
        CHECK(scheduler.forget(*task, kNever));
    }
    CHECK(scheduler.stop(kNever));
}

TEST("with a share, too, a task that goes idle again and again is woken every time") {
    Scheduler scheduler(2, 8, {});
    Tasks background = with_shares({0.5});
    CHECK(scheduler.set_share(*background[0], 0.5));
    scheduler.notify(*background[0]);
    Counter task(scheduler);
    CHECK(scheduler.set_share(task, 0.5));
    const std::uint64_t rounds = check::count(2'000, 50'000);
    for (std::uint64_t i = 1; i <= rounds; ++i) {
        task.add();
        if (i % 100 == 0) background[0]->on = i % 200 == 0;
        if (i % 200 == 0) scheduler.notify(*background[0]);
        CHECK_SAYS(check::soon([&] { return task.meter.events.load() == i; }), "unit " + std::to_string(i));
    }
    CHECK(scheduler.stop(kNever));
}

// --- durations -----------------------------------------------------------------------------------------

TEST("every class of a histogram ends where the next one begins") {
    CHECK_EQUAL(Histogram::index(0), 0);
    for (std::size_t at = 0; at < Histogram::kClasses; ++at) {
        const std::uint64_t upper = Histogram::upper(at);
        CHECK_EQUAL(Histogram::index(upper), at);
        if (at + 1 == Histogram::kClasses) break;
        CHECK_EQUAL(Histogram::index(upper + 1), at + 1);
        CHECK(Histogram::upper(at + 1) > upper);
    }
    CHECK(Histogram::upper(Histogram::kClasses - 1) >= 7200ull * static_cast<std::uint64_t>(kSecond));
    for (const std::uint64_t huge : {std::uint64_t{1} << 50, std::uint64_t{1} << 62, UINT64_MAX}) {
        CHECK_EQUAL(Histogram::index(huge), Histogram::kClasses - 1);
    }
}

TEST("a class is no wider than a thirty-second of its values, and larger values are never in earlier ones") {
    auto random = check::random(7);
    std::uint64_t last = 0;
    std::size_t last_at = 0;
    for (std::uint64_t i = 0; i < check::count(200'000, 5'000'000); ++i) {
        const std::uint64_t value = random() >> (21 + check::below(random, 43));
        const std::size_t at = Histogram::index(value);
        const std::uint64_t upper = Histogram::upper(at);
        CHECK(upper >= value);
        CHECK((upper - value) * 32 <= value);
        CHECK(value >= last ? at >= last_at : at <= last_at);
        last = value;
        last_at = at;
    }
}

TEST("quantiles of a histogram are those of what was counted, to a thirty-second") {
    auto random = check::random(8);
    auto histogram = std::make_unique<Histogram>();
    std::vector<std::uint64_t> values;
    for (std::uint64_t i = 0; i < check::count(20'000, 500'000); ++i) {
        const std::uint64_t value = random() >> (24 + check::below(random, 38));
        const std::uint64_t times = check::below(random, 4);
        histogram->add(static_cast<Nanos>(value), times);
        values.insert(values.end(), times, value);
    }
    histogram->add(-5);  // a clock that was set back counts as nothing
    values.push_back(0);
    std::sort(values.begin(), values.end());
    std::uint64_t all = 0;
    for (std::size_t at = 0; at < Histogram::kClasses; ++at) all += histogram->count(at);
    CHECK_EQUAL(all, values.size());
    CHECK_EQUAL(histogram->longest(), values.back());
    for (const double part : {0.0, 0.01, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0}) {
        const auto rank = static_cast<std::uint64_t>(part * static_cast<double>(all - 1));
        std::uint64_t seen = 0;
        std::size_t at = 0;
        while ((seen += histogram->count(at)) <= rank) ++at;
        const std::uint64_t exact = values[rank], found = Histogram::upper(at);
        CHECK(found >= exact);
        CHECK((found - exact) * 32 <= exact);
    }
}
