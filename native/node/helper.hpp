// The connection helper: a thread for name look-ups, which may block for as long as they like.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace antiphon {

class Helper {
   public:
    using Post = std::function<void(std::function<void()>)>;

    // What a job returns is given to `post`, unless the helper was stopped meanwhile.
    explicit Helper(Post post) : state_(std::make_shared<State>()) { state_->post = std::move(post); }
    ~Helper() { stop(); }

    // A job must hold what it uses: it may outlive the node.
    void ask(std::function<std::function<void()>()> job);
    // Nothing is posted once this returns. A look-up that is under way is left to end by itself.
    void stop();

   private:
    struct State {
        std::mutex mutex;  // of everything here; held while a result is posted
        std::condition_variable work;
        std::deque<std::function<std::function<void()>()>> jobs;
        Post post;
        bool stopped = false, busy = false;
    };
    static void run(const std::shared_ptr<State>& state);

    std::shared_ptr<State> state_;
    std::thread thread_;
};

}  // namespace antiphon
