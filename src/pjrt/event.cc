#include <exception>

#include "base/log.h"
#include "pjrt/call.h"
#include "pjrt/pjrt.h"

namespace flambeau::pjrt {

struct Event::State {
  const PJRT_Api* api;
  PJRT_Event* handle;

  State(const PJRT_Api* api, PJRT_Event* handle) : api(api), handle(handle) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    release<&PJRT_Api::PJRT_Event_Destroy>(api, [&](auto& a) { a.event = handle; });
  }
};

Event::Event(const Plugin& plugin, PJRT_Event* owned) {
  if (owned != nullptr) state_ = std::make_shared<State>(plugin.api(), owned);
}

bool Event::ready() const {
  if (state_ == nullptr) return true;
  return call<&PJRT_Api::PJRT_Event_IsReady>(state_->api, "event", [&](auto& a) { a.event = state_->handle; }).is_ready;
}

void Event::await() const {
  if (state_ == nullptr) return;
  call<&PJRT_Api::PJRT_Event_Await>(state_->api, "await", [&](auto& a) { a.event = state_->handle; });
}

void Event::on_ready(std::function<void(std::string_view error)> callback) const {
  if (state_ == nullptr) {
    callback({});
    return;
  }
  struct Pending {
    std::shared_ptr<State> state;  // the plugin's event lives until the callback has run
    std::function<void(std::string_view)> callback;
  };
  auto pending = std::make_unique<Pending>(Pending{state_, std::move(callback)});
  auto fire = [](PJRT_Error* error, void* argument) {
    CallbackScope scope;
    std::unique_ptr<Pending> pending(static_cast<Pending*>(argument));
    const std::string text = take_error_text(pending->state->api, error);
    try {
      pending->callback(text);
    } catch (const std::exception& e) {  // the plugin's frames above must not see it
      log_warning("a callback of a PJRT event raised: {}", e.what());
    }
    pending.reset();  // within the scope: what the callback holds may be the last reference to a client
  };
  call<&PJRT_Api::PJRT_Event_OnReady>(state_->api, "event", [&](auto& a) {
    a.event = state_->handle;
    a.callback = fire;
    a.user_arg = pending.get();
  });
  pending.release();
}

}  // namespace flambeau::pjrt
