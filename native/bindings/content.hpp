// What bodies hold is judged in Python: regular expressions and XPath come from libraries that are reached
// from there. Here is how it is asked, for many bodies in one call.
#pragma once

#include <vector>

#include "bindings/python.hpp"
#include "bindings/targets.hpp"

namespace antiphon::python {

// Larger ones are not copied for Python, and let nobody pass.
inline constexpr std::size_t kMostJudged = std::size_t{1} << 20;

inline constexpr std::size_t kJudgedAtOnce = 256;  // bodies in one call

// An event as its filters see it.
struct Body {
    Message properties, data;
};

// Which of these bodies pass, by a judge that takes a list of them and gives a list of verdicts. When it
// fails, which is reported, none do. With the interpreter's lock, and without any of ours.
std::vector<bool> judge_bodies(PyObject* judge, const std::vector<Message>& bodies);

// Of one publisher. Every use holds the interpreter's lock, and none of ours: Python may run for long,
// and lets other threads run meanwhile.
class Content {
   public:
    // `planner(numbers, before)` gives a plan for these filters, made from the one before or from None;
    // `plan(bodies)` says for each body, None for one that is too large, which of them let it pass.
    // The first planner stays: it may be running.
    void use(Reference planner) {
        if (!planner_) planner_ = std::move(planner);
    }
    // A verdict for each body; of those that nobody asks about it is empty. False with an exception set:
    // then all of them are.
    bool judge(Targets& targets, const std::vector<Body>& bodies, std::vector<Verdict>& verdicts);

   private:
    Reference plan(const Targets& targets);

    Reference planner_, plan_;
    std::uint64_t version_ = 0;  // of the questions that the plan is for
};

}  // namespace antiphon::python
