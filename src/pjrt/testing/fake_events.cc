// Errors and events of the fake plugin.
#include "pjrt/testing/fake_objects.h"

namespace flambeau::pjrt::fake {
namespace {

struct FakeError : PJRT_Error, Counted<kError> {
  Status status;
};

void error_destroy(PJRT_Error_Destroy_Args* a) { delete static_cast<FakeError*>(a->error); }
void error_message(PJRT_Error_Message_Args* a) {
  const std::string& text = static_cast<const FakeError*>(a->error)->status.text;
  a->message = text.data();
  a->message_size = text.size();
}
PJRT_Error* error_code(PJRT_Error_GetCode_Args* a) {
  a->code = static_cast<PJRT_Error_Code>(static_cast<const FakeError*>(a->error)->status.code);
  return nullptr;
}

PJRT_Error* event_destroy(PJRT_Event_Destroy_Args* a) {
  delete a->event;
  return nullptr;
}
PJRT_Error* event_is_ready(PJRT_Event_IsReady_Args* a) {
  a->is_ready = a->event->completion->done();
  return nullptr;
}
PJRT_Error* event_error(PJRT_Event_Error_Args* a) { return error(a->event->completion->wait()); }
PJRT_Error* event_await(PJRT_Event_Await_Args* a) { return error(a->event->completion->wait()); }
PJRT_Error* event_on_ready(PJRT_Event_OnReady_Args* a) {
  a->event->completion->on_done(
      [callback = a->callback, user = a->user_arg](const Status& status) { callback(error(status), user); });
  return nullptr;
}

}  // namespace

PJRT_Error* error(Status status) {
  if (status.code == 0) return nullptr;
  auto* made = new FakeError;
  made->vtable = nullptr;
  made->status = std::move(status);
  return made;
}

void add_events(PJRT_Api& api) {
  api.PJRT_Error_Destroy = error_destroy;
  api.PJRT_Error_Message = error_message;
  api.PJRT_Error_GetCode = error_code;
  api.PJRT_Event_Destroy = event_destroy;
  api.PJRT_Event_IsReady = event_is_ready;
  api.PJRT_Event_Error = event_error;
  api.PJRT_Event_Await = event_await;
  api.PJRT_Event_OnReady = event_on_ready;
}

}  // namespace flambeau::pjrt::fake
