#include "common/system/nameless_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace rp {

UniqueFd create_nameless_file(const std::filesystem::path& directory) {
  // This file never has a name that a killed process could leave behind.
  UniqueFd fd(open(directory.c_str(), O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
  if (fd) return fd;
  // Some file systems do not support that.
  std::string name = (directory / ".roundpipe-XXXXXX").string();
  fd = UniqueFd(mkostemp(name.data(), O_CLOEXEC));
  if (fd) unlink(name.c_str());
  return fd;
}

}  // namespace rp
