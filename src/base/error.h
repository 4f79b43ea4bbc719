// What can go wrong, as one small family of exceptions.
//
// A message reads "[where] expected X, got Y" and ends with what to do next. Exceptions are thrown where the fault is
// known and converted at the edges only: to Python types by the Python module, to exit code 2 by the command line.
// FLAMBEAU_CHECK is for bugs of ours: it names the broken invariant and aborts; never use it on input or on what a
// plugin answers.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace flambeau {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller gave something impossible: a shape, a key, a value, a file's content. ValueError in Python.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

// An index or a dimension that is not there. IndexError in Python.
class OutOfRange : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

// Where PyTorch raises a ValueError, at the device's edge too.
class InvalidValue : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

// Flambeau does not do this yet. NotImplementedError in Python.
class NotImplemented : public Error {
 public:
  using Error::Error;
};

// A file or folder cannot be read or written. OSError in Python.
class IoError : public Error {
 public:
  using Error::Error;
};

// A PJRT plugin refused or failed; the message holds the plugin's own text. RuntimeError in Python.
class PluginError : public Error {
 public:
  using Error::Error;
};

// Of a message that goes on with stack traces or a compiler's log.
inline std::string first_line(std::string_view message) { return std::string(message.substr(0, message.find('\n'))); }

template <class E = Error, class... Args>
[[noreturn]] void raise(fmt::format_string<Args...> format, Args&&... args) {
  throw E(fmt::format(format, std::forward<Args>(args)...));
}

[[noreturn]] void check_failed(const char* condition, const char* file, int line, std::string_view invariant);

}  // namespace flambeau

#define FLAMBEAU_CHECK(condition, invariant)                                                  \
  do {                                                                                        \
    if (!(condition)) [[unlikely]]                                                            \
      ::flambeau::check_failed(#condition, __FILE__, __LINE__, invariant);                    \
  } while (false)
