#include "pipeline/process/worker_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "tests/common/expect_refusal.h"
#include "tests/hoststore/small_catalogue.h"

namespace rp::test {
namespace {

class WorkerWatchTest : public testing::Test {
 protected:
  void wait() { watch_.wait_until_serving(WaitRecord()); }
  void serve_all() {
    for (int worker = 0; worker < 2; ++worker) store_->worker_words(worker).acknowledged.publish(1);
    wait();
  }
  void report(MessageKind kind, int worker) {
    EXPECT_TRUE(ends_.second.send({.kind = kind, .worker = worker, .blob = {}, .descriptors = {}}));
  }
  void report_gone(int worker) { report(MessageKind::kWorkerGone, worker); }
  static void not_failed(const std::exception_ptr&) { FAIL() << "reported as a failure"; }

  const std::unique_ptr<Store> store_ = Store::create({.backing = "memfd", .num_workers = 2}, small_catalogue());
  std::pair<Channel, Channel> ends_ = Channel::create_pair();
  std::promise<int> losses_[2];
  int num_losses_ = 0;
  WorkerWatch watch_{ends_.first,
                     *store_,
                     {.lose = [this](int worker) { losses_[num_losses_++].set_value(worker); }, .set_aside = {}}};
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

TEST_F(WorkerWatchTest, ALossIsReportedForEachOfItsProcesses) {
  serve_all();
  watch_.start(not_failed);
  for (std::promise<int>& loss : losses_) {
    report(MessageKind::kWorkerLost, 1);
    EXPECT_EQ(loss.get_future().get(), 1);
  }
  watch_.expect_ends();
  watch_.stop();
}

TEST_F(WorkerWatchTest, AWorkerThatEndsWhenItMayIsNotReported) {
  serve_all();
  watch_.expect_ends();
  watch_.start(not_failed);
  report_gone(0);
  watch_.stop();
}

TEST_F(WorkerWatchTest, AWorkerThatEndsWhileItStartsEndsTheWaitForAll) {
  store_->worker_words(0).acknowledged.publish(1);
  report_gone(1);
  EXPECT_THAT(error_of([&] { wait(); }), "worker 1 ended while it started");
}

TEST_F(WorkerWatchTest, AWorkerThatIsLostWhileItStartsIsWaitedForOnlyIfItIsReplaced) {
  report(MessageKind::kWorkerLost, 0);
  report(MessageKind::kWorkerLeft, 1);
  std::thread replacement([&] {
    EXPECT_EQ(losses_[1].get_future().get(), 1);
    store_->worker_words(0).acknowledged.publish(2);
  });
  wait();
  replacement.join();
  EXPECT_EQ(losses_[0].get_future().get(), 0);
}

}  // namespace
}  // namespace rp::test
