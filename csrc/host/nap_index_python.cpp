// _host.NapIndex: NumPy arrays to pointers and back. zbkernels/nap/index.py puts tensors on top.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "host/bindings.h"
#include "host/nap_index.h"

namespace zb {

namespace {

namespace py = pybind11;
using Ints = py::array_t<int64_t>;
using Unlocked = py::gil_scoped_release;

std::string text_of(const py::handle& value) { return py::str(value).cast<std::string>(); }

std::string shape_of(const py::array& a) { return text_of(py::list(a.attr("shape"))); }

// What pointers may read: a dense array of int64 (or uint64, for signatures) in this machine's byte order.
void check_array(const std::string& function, const char* name, const py::array& a, int dimensions,
                 bool words) {
  const py::dtype type = a.dtype();
  const bool integer = type.kind() == 'i' || (words && type.kind() == 'u');
  if (!integer || type.itemsize() != 8 || !type.attr("isnative").cast<bool>()) {
    throw py::type_error(function + ": expected " + name + " of int64 in native byte order, got " +
                         text_of(type.attr("str")));
  }
  if (a.ndim() != dimensions) {
    throw py::value_error(function + ": expected " + name + " with " + std::to_string(dimensions) +
                          " dimensions, got " + shape_of(a));
  }
  if (!(a.flags() & py::array::c_style)) {
    throw py::value_error(function + ": expected " + name + " contiguous in memory, got strides " +
                          text_of(a.attr("strides")));
  }
}

const uint64_t* words_of(const std::string& function, const py::array& a, const NapIndex& index) {
  check_array(function, "signatures", a, 2, true);
  if (a.shape(1) != index.options().words) {
    throw py::value_error(function + ": expected signatures of shape [n, " +
                          std::to_string(index.options().words) + "], got " + shape_of(a));
  }
  return static_cast<const uint64_t*>(a.data());
}

const int64_t* column_of(const char* name, const std::optional<py::array>& a, int64_t n) {
  if (!a) return nullptr;
  check_array("NapIndex.insert", name, *a, 1, false);
  if (a->shape(0) != n) {
    throw py::value_error("NapIndex.insert: expected " + std::string(name) + " of shape [" +
                          std::to_string(n) + "], one for each signature, got " + shape_of(*a));
  }
  return static_cast<const int64_t*>(a->data());
}

// The patterns that a question is about: all where none are named.
struct Which {
  Which(const NapIndex& index, const std::optional<py::array>& patterns) {
    if (!patterns) {
      const Unlocked unlocked;
      n = index.size();
      return;
    }
    check_array("NapIndex", "patterns", *patterns, 1, false);
    n = patterns->shape(0);
    data = static_cast<const int64_t*>(patterns->data());
  }
  int64_t n = 0;
  const int64_t* data = nullptr;
};

Ints insert(NapIndex& index, const py::array& signatures, const std::optional<py::array>& labels,
            const std::optional<py::array>& predictions, const std::optional<py::array>& ids, int threads) {
  NapIndex::Batch batch{words_of("NapIndex.insert", signatures, index), signatures.shape(0)};
  batch.labels = column_of("labels", labels, batch.n);
  batch.predictions = column_of("predictions", predictions, batch.n);
  batch.ids = column_of("ids", ids, batch.n);
  Ints found(batch.n);
  int64_t* const out = found.mutable_data();
  const Unlocked unlocked;
  index.insert(batch, threads, out);
  return found;
}

Ints find(const NapIndex& index, const py::array& signatures, int threads) {
  const uint64_t* const rows = words_of("NapIndex.find", signatures, index);
  Ints found(signatures.shape(0));
  int64_t* const out = found.mutable_data();
  const int64_t n = signatures.shape(0);
  const Unlocked unlocked;
  index.find(rows, n, threads, out);
  return found;
}

Ints signatures(const NapIndex& index, const std::optional<py::array>& patterns) {
  const Which which(index, patterns);
  Ints out({which.n, index.options().words});
  auto* const data = reinterpret_cast<uint64_t*>(out.mutable_data());
  const Unlocked unlocked;
  index.signatures(which.data, which.n, data);
  return out;
}

template <void (NapIndex::*ask)(const int64_t*, int64_t, int64_t*) const>
Ints column(const NapIndex& index, const std::optional<py::array>& patterns) {
  const Which which(index, patterns);
  Ints out(which.n);
  int64_t* const data = out.mutable_data();
  const Unlocked unlocked;
  (index.*ask)(which.data, which.n, data);
  return out;
}

template <NapIndex::Kind kind>
py::tuple majority(const NapIndex& index, const std::optional<py::array>& patterns) {
  const Which which(index, patterns);
  Ints label(which.n), shared(which.n);
  int64_t *const label_data = label.mutable_data(), *const shared_data = shared.mutable_data();
  {
    const Unlocked unlocked;
    index.majority(kind, which.data, which.n, label_data, shared_data);
  }
  return py::make_tuple(label, shared);
}

template <NapIndex::Kind kind>
Ints class_counts(const NapIndex& index, const std::optional<py::array>& patterns) {
  const Which which(index, patterns);
  Ints out({which.n, index.options().classes});
  int64_t* const data = out.mutable_data();
  const Unlocked unlocked;
  index.class_counts(kind, which.data, which.n, data);
  return out;
}

template <class Ask>
Ints list_of(const Ask& ask) {
  std::vector<int64_t> values;
  {
    const Unlocked unlocked;
    values = ask();
  }
  return Ints(static_cast<py::ssize_t>(values.size()), values.data());
}

Ints example_ids(const NapIndex& index, int64_t pattern) {
  return list_of([&] { return index.example_ids(pattern); });
}

Ints top(const NapIndex& index, int64_t k) {
  return list_of([&] { return index.top(k); });
}

py::list blocks(const py::object& self) {
  const auto& index = self.cast<const NapIndex&>();
  py::list found;
  for (const auto& [data, rows] : index.blocks()) {
    found.append(Ints({rows, index.options().words}, reinterpret_cast<const int64_t*>(data), self));
  }
  return found;
}

void save(const NapIndex& index, int descriptor) {
  const Unlocked unlocked;
  index.save([descriptor](const void* data, int64_t bytes, int64_t offset) {
    const char* p = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t done = pwrite(descriptor, p, static_cast<size_t>(bytes), offset);
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0)
        throw std::system_error(done < 0 ? errno : EIO, std::generic_category(), "NapIndex.save");
      p += done, bytes -= done, offset += done;
    }
  });
}

py::bytes to_bytes(const NapIndex& index) {
  const int64_t total = index.file_bytes();
  auto bytes = py::reinterpret_steal<py::bytes>(PyBytes_FromStringAndSize(nullptr, total));
  if (!bytes) throw py::error_already_set();
  char* const to = PyBytes_AS_STRING(bytes.ptr());
  const Unlocked unlocked;
  index.save([to, total](const void* data, int64_t size, int64_t offset) {
    if (offset + size > total) throw std::runtime_error("NapIndex: the index grew while it was being copied");
    std::memcpy(to + offset, data, static_cast<size_t>(size));
  });
  return bytes;
}

std::unique_ptr<NapIndex> load(int descriptor, const std::string& name, bool verify) {
  const Unlocked unlocked;
  struct stat status;
  if (fstat(descriptor, &status) != 0)
    throw std::system_error(errno, std::generic_category(), "NapIndex.load");
  const int64_t bytes = S_ISREG(status.st_mode) ? status.st_size : 0;
  Pages file = bytes ? Pages::of_file(descriptor, bytes) : Pages();
  return NapIndex::load(std::move(file), bytes, verify, "NapIndex.load", name);
}

std::unique_ptr<NapIndex> from_bytes(const py::bytes& bytes) {
  char* data = nullptr;
  py::ssize_t size = 0;
  if (PyBytes_AsStringAndSize(bytes.ptr(), &data, &size) != 0) throw py::error_already_set();
  const Unlocked unlocked;
  Pages copy = size ? Pages::zeros(size, false) : Pages();
  if (size) std::memcpy(copy.data(), data, static_cast<size_t>(size));
  return NapIndex::load(std::move(copy), size, true, "NapIndex", "these bytes");
}

}  // namespace

void bind_nap_index(py::module_& m) {
  using Kind = NapIndex::Kind;
  const auto none = py::none();
  py::register_local_exception_translator([](std::exception_ptr p) {
    try {
      if (p) std::rethrow_exception(p);
    } catch (const std::system_error& error) {
      py::set_error(PyExc_OSError, py::make_tuple(error.code().value(), error.what()));
    }
  });
  py::class_<NapIndex>(m, "NapIndex",
                       "Distinct signatures in the order of first appearance; arrays in and out.")
      .def(py::init([](int64_t words, int64_t classes, bool predictions, bool example_ids, int64_t start) {
             NapIndex::Options options{words};
             options.classes = classes;
             options.predictions = predictions;
             options.example_ids = example_ids;
             options.start = start;
             return std::make_unique<NapIndex>(options);
           }),
           py::arg("words"), py::arg("classes"), py::arg("predictions"), py::arg("example_ids"),
           py::arg("start"))
      .def("__len__", &NapIndex::size, py::call_guard<Unlocked>())
      .def_property_readonly("words", [](const NapIndex& index) { return index.options().words; })
      .def_property_readonly("classes", [](const NapIndex& index) { return index.options().classes; })
      .def_property_readonly("has_predictions",
                             [](const NapIndex& index) { return index.options().predictions; })
      .def_property_readonly("has_example_ids",
                             [](const NapIndex& index) { return index.options().example_ids; })
      .def_property_readonly("start", [](const NapIndex& index) { return index.options().start; })
      .def_property_readonly("examples", py::cpp_function(&NapIndex::examples, py::call_guard<Unlocked>()))
      .def_property_readonly("bytes", py::cpp_function(&NapIndex::bytes, py::call_guard<Unlocked>()))
      .def("insert", &insert, py::arg("signatures"), py::arg("labels"), py::arg("predictions"),
           py::arg("ids"), py::arg("threads"))
      .def("find", &find, py::arg("signatures"), py::arg("threads"))
      .def("merge", &NapIndex::merge, py::arg("other"), py::arg("threads"), py::call_guard<Unlocked>())
      .def("signatures", &signatures, py::arg("patterns") = none)
      .def("counts", &column<&NapIndex::counts>, py::arg("patterns") = none)
      .def("first_ids", &column<&NapIndex::first_ids>, py::arg("patterns") = none)
      .def("labels", &majority<Kind::kLabels>, py::arg("patterns") = none)
      .def("predictions", &majority<Kind::kPredictions>, py::arg("patterns") = none)
      .def("class_counts", &class_counts<Kind::kLabels>, py::arg("patterns") = none)
      .def("prediction_counts", &class_counts<Kind::kPredictions>, py::arg("patterns") = none)
      .def("example_ids", &example_ids, py::arg("pattern"))
      .def("top", &top, py::arg("k"))
      .def("blocks", &blocks)
      .def("save", &save, py::arg("descriptor"))
      .def_static("load", &load, py::arg("descriptor"), py::arg("name"), py::arg("verify"))
      .def("to_bytes", &to_bytes)
      .def_static("from_bytes", &from_bytes)
      .def("verify", &NapIndex::verify, py::call_guard<Unlocked>());
}

}  // namespace zb
