#include "pjrt/topology_compiler.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/files.h"
#include "base/process.h"
#include "base/text.h"
#include "pjrt/topology_job.h"

namespace flambeau::pjrt {
namespace {

namespace fs = std::filesystem;

// ---- the parent -------------------------------------------------------------------------------------------------------

// A fresh folder that goes away.
class JobFolder {
 public:
  JobFolder() {
    std::string name = (fs::temp_directory_path() / "flambeau_compile_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) raise<IoError>("cannot make a folder {}: {}", name, std::strerror(errno));
    path_ = name;
  }
  ~JobFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  JobFolder(const JobFolder&) = delete;
  JobFolder& operator=(const JobFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

fs::path compiler_program() {
  if (const std::string named = environment("FLAMBEAU_TOPOLOGY_COMPILER"); !named.empty()) return named;
  std::error_code error;
  const fs::path beside = fs::read_symlink("/proc/self/exe", error).parent_path() / "topology_compiler";
  if (access(beside.c_str(), X_OK) != 0) {
    raise<InvalidArgument>(
        "[topology_compiler] expected the program {}; build it, or name it with FLAMBEAU_TOPOLOGY_COMPILER",
        beside.string());
  }
  return beside;
}

// Starts `program folder` with its output in the file `output`, in a group of its own: a terminal's Ctrl-C is the parent's to answer.
Child start(const fs::path& program, const fs::path& folder, const fs::path& output) {
  const struct File {
    int fd;
    ~File() { close(fd); }
  } file{open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)};
  if (file.fd < 0) raise<IoError>("cannot write {}: {}", output.string(), std::strerror(errno));
  try {
    return {{program.string(), folder.string()}, file.fd, file.fd, /*own_group=*/true};
  } catch (const IoError& error) {
    raise<InvalidArgument>("[topology_compiler] {}", error.what());
  }
}

// The last lines of what a compiler wrote, for a message.
std::string_view last_lines(std::string_view text) {
  constexpr size_t kMost = 2000;
  if (text.size() <= kMost) return text;
  const size_t line = text.find('\n', text.size() - kMost);
  return text.substr(line == std::string_view::npos ? text.size() - kMost : line + 1);
}

// The status of `waitpid`. PluginError when the child took more time or memory than the job allows.
int wait_for(Child& child, const TopologyJob& job, const fs::path& output) {
  const auto deadline = std::chrono::steady_clock::now() + job.time_limit;
  const char* what = job.whole ? "the program" : "the first phase";
  for (auto pause = std::chrono::milliseconds(1);; pause = std::min(2 * pause, std::chrono::milliseconds(20))) {
    if (const auto status = child.ended()) return *status;
    if (job.goes_on && !job.goes_on()) throw Cancelled("[topology_compiler] the compilation was given up");
    if (std::chrono::steady_clock::now() >= deadline)
      raise<PluginError>("[topology_compiler] expected {} compiled for {} within {} s, and it was not; give it more time. {}", what,
                         job.topology, job.time_limit.count(), last_lines(read_file(output)));
    if (job.memory_limit > 0 && child.memory() > job.memory_limit)
      raise<PluginError>("[topology_compiler] expected {} compiled for {} within {} MiB of memory, and it needs more; allow it more", what,
                         job.topology, job.memory_limit >> 20);
    std::this_thread::sleep_for(pause);
  }
}

// ---- the child ----------------------------------------------------------------------------------------------------------

int64_t integer_of(const Attributes& attributes, const std::string& name) {
  const auto found = attributes.find(name);
  const int64_t* value = found == attributes.end() ? nullptr : std::get_if<int64_t>(&found->second);
  return value == nullptr ? 0 : *value;
}

// The job in `folder`, but for the compiler's reports. `result` holds what is known so far when this raises.
void compile_here(const fs::path& folder, TopologyResult& result) {
  TopologyJob job = read_job(folder);
  const Plugin& plugin = Plugin::load(job.plugin);
  const auto topology = Topology::create(plugin, job.topology, job.attributes);
  result.device_count = static_cast<int>(topology->devices().size());
  if (!topology->devices().empty()) {
    const Device& first = topology->devices().front();
    result.device_kind = first.kind;
    result.device_memory = integer_of(first.attributes, "device_memory_bytes_limit");
  }
  // The first phase's output has no memory figures, and neither has a program that does not fit: XLA's own reports have.
  job.options.overrides.try_emplace("xla_dump_to", (folder / "dump").string());
  job.options.overrides.try_emplace("xla_dump_hlo_as_text", true);   // the reports
  job.options.overrides.try_emplace("xla_dump_hlo_as_proto", true);  // the module
  if (job.whole) {
    result.optimized_hlo = topology->compile(job.program, job.options).optimized_hlo;
  } else {
    result.optimized_hlo = topology->first_phase(job.program, job.options);
  }
}

// Does the job and leaves its result in the folder, that of a program that does not fit too. Gives the process's exit code.
int compile_and_tell(const fs::path& folder) {
  TopologyResult result;
  std::string does_not_fit;
  try {
    compile_here(folder, result);
  } catch (const OutOfMemory& error) {
    does_not_fit = error.what();
  }
  read_dump(folder / "dump", result);
  write_result(folder, result, does_not_fit);
  return does_not_fit.empty() ? 0 : 2;
}

}  // namespace

TopologyResult compile_apart(const TopologyJob& job) {
  const fs::path program = compiler_program();
  const JobFolder folder;
  write_job(folder.path(), job);
  const fs::path output = folder.path() / "stderr";
  Child child = start(program, folder.path(), output);
  const int status = wait_for(child, job, output);
  const std::string diagnostics = read_file(output);
  if (!fs::exists(folder.path() / "result")) {
    const std::string how = WIFSIGNALED(status)
                                ? fmt::format("signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)))
                                : fmt::format("exit code {}", WEXITSTATUS(status));
    raise<PluginError>("[topology_compiler] the compiler for {} ended with {} and no result. {}", job.topology, how,
                       last_lines(diagnostics));
  }
  try {
    return read_result(folder.path(), diagnostics);
  } catch (const OutOfMemory&) {
    throw;
  } catch (const PluginError& error) {
    if (diagnostics.empty()) throw;
    raise<PluginError>("{}\n{}", error.what(), last_lines(diagnostics));  // some say there what was wrong
  }
}

std::vector<std::string> remarks(std::string_view diagnostics) {
  std::vector<std::string> lines;
  for (std::string& line : split(diagnostics, '\n'))
    if (line.find("rematerialization") != std::string::npos) lines.push_back(std::move(line));
  return lines;
}

void prepare_to_compile_for_tpu() {
  for (const char* name : {"TPU_SKIP_MDS_QUERY", "ALLOW_MULTIPLE_LIBTPU_LOAD"}) setenv(name, "1", /*overwrite=*/1);
  setenv("TPU_ACCELERATOR_TYPE", "v5litepod-4", 1);  // any: the topology is given by name
  setenv("TPU_WORKER_ID", "0", 1);
  setenv("TPU_WORKER_HOSTNAMES", "localhost", 1);
  // Warnings to standard error; by default they go to files in a folder of the plugin's choice.
  for (const char* name : {"TPU_MIN_LOG_LEVEL", "TPU_STDERR_LOG_LEVEL"}) setenv(name, "1", 1);
  setenv("TPU_LOG_DIR", "disabled", 1);
  for (const char* name : {"XLA_FLAGS", "LIBTPU_INIT_ARGS"}) unsetenv(name);
}

int run_topology_job(const fs::path& folder) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // nobody wants the result of a parent that is gone
  prepare_to_compile_for_tpu();
  JobEnd end = JobEnd::Refused;
  std::string text;
  try {
    return compile_and_tell(folder);
  } catch (const InvalidArgument& error) {
    end = JobEnd::Invalid;
    text = error.what();
  } catch (const std::exception& error) {
    text = error.what();
  }
  try {
    write_failure(folder, end, text);
  } catch (const std::exception& error) {  // a full disk: the parent shows the end of standard error
    std::fprintf(stderr, "%s\n%s\n", text.c_str(), error.what());
  }
  return 2;
}

}  // namespace flambeau::pjrt
