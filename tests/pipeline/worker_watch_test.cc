#include "pipeline/worker_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <utility>

#include "tests/common/expect_refusal.h"
#include "tests/hoststore/small_catalogue.h"

namespace rp::test {
namespace {

class WorkerWatchTest : public testing::Test {
 protected:
  void wait(std::int64_t timeout_seconds) {
    watch_.wait_until_serving(timeout_seconds, WaitRecord(), [this] { ++num_hangs_; });
  }
  void serve_all() {
    for (int worker = 0; worker < 2; ++worker) store_->worker_words(worker).acknowledged.publish(1);
    wait(20);
  }
  void report_gone(int worker) {
    EXPECT_TRUE(ends_.second.send({.kind = MessageKind::kWorkerGone, .worker = worker, .blob = {}, .descriptors = {}}));
  }

  const std::unique_ptr<Store> store_ = Store::create({.backing = "memfd", .num_workers = 2}, small_catalogue());
  std::pair<Channel, Channel> ends_ = Channel::create_pair();
  WorkerWatch watch_{ends_.first, *store_};
  int num_hangs_ = 0;
};

TEST_F(WorkerWatchTest, AWorkerThatEndsWhileItServesIsReported) {
  serve_all();
  std::promise<std::exception_ptr> failed;
  watch_.start([&](std::exception_ptr error) { failed.set_value(std::move(error)); });
  report_gone(1);
  EXPECT_THAT(error_of([&] { std::rethrow_exception(failed.get_future().get()); }), "worker 1 ended unexpectedly");
  watch_.expect_ends();
  watch_.stop();
}

TEST_F(WorkerWatchTest, AWorkerThatEndsWhenItMayIsNotReported) {
  serve_all();
  watch_.expect_ends();
  watch_.start([](const std::exception_ptr&) { FAIL() << "reported"; });
  report_gone(0);
  watch_.stop();
}

TEST_F(WorkerWatchTest, AWorkerThatEndsWhileItStartsEndsTheWaitForAll) {
  store_->worker_words(0).acknowledged.publish(1);
  report_gone(1);
  EXPECT_THAT(error_of([&] { wait(20); }), "worker 1 ended while it started");
}

TEST_F(WorkerWatchTest, AWorkerThatDoesNotStartInTimeIsNamed) {
  store_->worker_words(0).acknowledged.publish(1);
  EXPECT_THAT(error_of([&] { wait(0); }), testing::HasSubstr("worker 1 did not start within 0 s (--attach-timeout)"));
  EXPECT_EQ(num_hangs_, 1);
}

}  // namespace
}  // namespace rp::test
