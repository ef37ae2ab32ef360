// The connection helper: threads for name look-ups, which may block for as long as they like. There is
// one, and a few more only while look-ups are stuck: a name whose server is silent must not hold up the
// others.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace antiphon {

class Helper {
   public:
    using Post = std::function<void(std::function<void()>)>;

    // What a job returns is given to `post`, unless the helper was stopped meanwhile.
    explicit Helper(Post post) : state_(std::make_shared<State>()) { state_->post = std::move(post); }
    ~Helper() { stop(); }

    // A job must hold what it uses: it may outlive the node. False: there is no thread for it, and none to be had.
    [[nodiscard]] bool ask(std::function<std::function<void()>()> job);
    // Nothing is posted once this returns. A look-up that is under way is left to end by itself.
    void stop();

   private:
    struct State {
        std::mutex mutex;  // of everything here; held while a result is posted
        std::condition_variable work;
        std::deque<std::function<std::function<void()>()>> jobs;
        Post post;
        bool stopped = false;
        int idle = 0;
    };
    static constexpr std::size_t kMostThreads = 8;
    static void run(const std::shared_ptr<State>& state);

    std::shared_ptr<State> state_;
    std::vector<std::thread> threads_;
};

}  // namespace antiphon
