// Where the plugin's library is: find_plugin.
#include "pjrt/discovery.h"

#include <cstdlib>

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/process.h"
#include "pjrt/pjrt.h"

namespace flambeau::pjrt {
namespace {

namespace fs = std::filesystem;

struct Package {
  std::string_view name;  // what find_plugin calls it
  std::string_view file;  // in site-packages
  std::string_view install;
};

// In the order in which they are taken when nothing is asked for. The accelerators' wheels also serve to compile on
// machines without such a device, so they are no default there: see device_present.
constexpr Package kPackages[] = {
    {"tpu", "libtpu/libtpu.so", "libtpu"},
    {"cuda", "jax_plugins/xla_cuda13/xla_cuda_plugin.so", "jax-cuda13-pjrt"},
    {"cpu", "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so", "--no-deps lammps-jax-pjrt-cpu"},
    {"xla-cpu", "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so", "xla-cpu-pjrt"},
    {"fast-cpu", "fastatomstruct_xla_cpu/libpjrt_cpu.so", "--no-deps fastatomstruct-xla-cpu"},
};

// lib/python3.*/site-packages of a virtual environment; empty when there is none.
fs::path site_packages_of(const fs::path& environment) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(environment / "lib", error)) {
    if (entry.path().filename().native().starts_with("python3") && fs::is_directory(entry.path() / "site-packages", error)) {
      return entry.path() / "site-packages";
    }
  }
  return {};
}

// Empty when there is none. `looked` says where it looked.
fs::path site_packages(std::vector<std::string>& looked) {
  if (const auto given = environment("FLAMBEAU_SITE_PACKAGES"); !given.empty()) {
    looked.push_back("FLAMBEAU_SITE_PACKAGES=" + given);
    return given;
  }
  if (const auto venv = environment("VIRTUAL_ENV"); !venv.empty()) {
    looked.push_back("VIRTUAL_ENV=" + venv);
    if (auto found = site_packages_of(venv); !found.empty()) return found;
  }
  std::error_code error;
  const fs::path starts[] = {fs::read_symlink("/proc/self/exe", error).parent_path(), fs::current_path(error)};
  for (const fs::path& start : starts) {
    looked.push_back(fmt::format(".venv in or above {}", start.string()));
    if (auto found = site_packages_near(start); !found.empty()) return found;
  }
  return {};
}

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

// An installed accelerator plugin is only a default where there is such a device.
bool device_present(const Package& package) {
  std::error_code error;
  if (package.name == "tpu") return fs::exists("/dev/accel0", error) || fs::exists("/dev/vfio/0", error);
  if (package.name == "cuda") return fs::exists("/dev/nvidia0", error);
  return true;
}

fs::path find_package(const Package& package) {
  std::vector<std::string> looked;
  const fs::path site = site_packages(looked);
  if (site.empty()) {
    raise<InvalidArgument>(
        "[find_plugin] found no Python environment for the plugin '{}' (looked at {}); set FLAMBEAU_SITE_PACKAGES",
        package.name, fmt::join(looked, "; "));
  }
  if (!is_file(site / package.file)) {
    raise<InvalidArgument>("[find_plugin] the plugin '{}' is not installed: there is no {}; run pip install {}",
                           package.name, (site / package.file).string(), package.install);
  }
  return site / package.file;
}

// A known name or a path; `origin` is what gave it.
fs::path resolve(std::string_view requested, std::string_view origin) {
  for (const Package& package : kPackages) {
    if (package.name == requested) return find_package(package);
  }
  if (is_file(requested)) return requested;
  std::vector<std::string_view> names;
  for (const Package& package : kPackages) names.push_back(package.name);
  raise<InvalidArgument>("[find_plugin] {}: expected the path of a PJRT plugin or one of {}, got '{}'", origin,
                         fmt::join(names, ", "), requested);
}

}  // namespace

fs::path site_packages_near(fs::path folder) {
  for (; !folder.empty(); folder = folder.parent_path()) {
    if (auto found = site_packages_of(folder / ".venv"); !found.empty()) return found;
    if (folder == folder.root_path()) break;
  }
  return {};
}

fs::path find_python() {
  if (const auto given = environment("FLAMBEAU_PYTHON"); !given.empty()) return given;
  std::vector<std::string> looked;
  const fs::path site = site_packages(looked);  // ENVIRONMENT/lib/python3.x/site-packages
  const fs::path python = site.parent_path().parent_path().parent_path() / "bin" / "python";
  return !site.empty() && is_file(python) ? python : fs::path();
}

fs::path find_plugin(std::string_view requested) {
  if (!requested.empty()) return resolve(requested, "the requested plugin");
  if (const auto given = environment("FLAMBEAU_PLUGIN"); !given.empty()) return resolve(given, "FLAMBEAU_PLUGIN");
  if (const auto given = environment("PJRT_NAMES_AND_LIBRARY_PATHS"); !given.empty()) {
    const std::string first = given.substr(0, given.find(','));
    return resolve(first.substr(first.find(':') + 1), "PJRT_NAMES_AND_LIBRARY_PATHS");
  }
  if (const auto given = environment("TPU_LIBRARY_PATH"); !given.empty()) return resolve(given, "TPU_LIBRARY_PATH");

  std::vector<std::string> looked = {
      "FLAMBEAU_PLUGIN, PJRT_NAMES_AND_LIBRARY_PATHS and TPU_LIBRARY_PATH, which are not set"};
  const fs::path site = site_packages(looked);
  for (const Package& package : kPackages) {
    if (site.empty() || !device_present(package)) continue;
    if (is_file(site / package.file)) return site / package.file;
    looked.push_back((site / package.file).string());
  }
  raise<InvalidArgument>(
      "[find_plugin] found no PJRT plugin; looked at {}. Run pip install --no-deps lammps-jax-pjrt-cpu, or set "
      "FLAMBEAU_PLUGIN to a plugin's library",
      fmt::join(looked, "; "));
}

}  // namespace flambeau::pjrt
