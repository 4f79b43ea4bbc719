// Internal to src/pjrt: the part of find_plugin that its test needs.
#pragma once

#include <filesystem>

namespace flambeau::pjrt {

// lib/python3.*/site-packages of the first `.venv` in `folder` or a folder above it; empty when there is none.
std::filesystem::path site_packages_near(std::filesystem::path folder);

}  // namespace flambeau::pjrt
