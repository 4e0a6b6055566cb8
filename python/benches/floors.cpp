// What a program in C++ needs, which has PyTorch at hand and does nothing else: to read the tensors of a structure, to put them into one
// block, and to make a structure of parts of another block. `floors.py` compiles and calls it.

#include <torch/extension.h>

#include <chrono>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t alignment = 16;

struct Leaf {
    const void* data;
    int64_t bytes;
    at::ScalarType type;
    c10::Device device;
    c10::IntArrayRef sizes, strides;
    // Where it goes.
    int64_t offset;
};

// Those of the last structure that was read, in order.
std::vector<Leaf> leaves;

double since(Clock::time_point begin) {
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

// Calls `visit` with each object that is neither a dict nor a list.
template <typename Visit>
void walk(PyObject* object, Visit& visit) {
    if (PyDict_CheckExact(object)) {
        Py_ssize_t position = 0;
        for (PyObject *key, *value; PyDict_Next(object, &position, &key, &value);) {
            walk(value, visit);
        }
    } else if (PyList_CheckExact(object)) {
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(object); ++i) {
            walk(PyList_GET_ITEM(object, i), visit);
        }
    } else {
        visit(object);
    }
}

// Of tensors without gaps. The time that it takes, in microseconds, as below.
double read_leaves(const py::object& data) {
    const auto begin = Clock::now();
    leaves.clear();
    int64_t end = 0;
    auto look = [&](PyObject* object) {
        if (!THPVariable_Check(object)) {
            return;
        }
        const at::TensorImpl* tensor = THPVariable_Unpack(object).unsafeGetTensorImpl();
        if (!tensor->is_contiguous()) {
            throw std::runtime_error("a tensor with gaps");
        }
        const int64_t bytes = tensor->numel() * static_cast<int64_t>(tensor->itemsize());
        const int64_t offset = (end + alignment - 1) / alignment * alignment;
        end = offset + bytes;
        leaves.push_back({tensor->data(), bytes, c10::typeMetaToScalarType(tensor->dtype()), tensor->device(),
                          tensor->sizes(), tensor->strides(), offset});
    };
    walk(data.ptr(), look);
    return since(begin);
}

double stage_leaves(const at::Tensor& block) {
    const auto begin = Clock::now();
    for (const Leaf& leaf : leaves) {
        std::memcpy(static_cast<char*>(block.data_ptr()) + leaf.offset, leaf.data, leaf.bytes);
    }
    return since(begin);
}

PyObject* like(PyObject* object, const at::Tensor& block, const Leaf*& next) {
    if (PyDict_CheckExact(object)) {
        PyObject* made = PyDict_New();
        Py_ssize_t position = 0;
        for (PyObject *key, *value; PyDict_Next(object, &position, &key, &value);) {
            PyObject* item = like(value, block, next);
            PyDict_SetItem(made, key, item);
            Py_DECREF(item);
        }
        return made;
    }
    if (PyList_CheckExact(object)) {
        PyObject* made = PyList_New(PyList_GET_SIZE(object));
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(object); ++i) {
            PyList_SET_ITEM(made, i, like(PyList_GET_ITEM(object, i), block, next));
        }
        return made;
    }
    if (!THPVariable_Check(object)) {
        Py_INCREF(object);
        return object;
    }
    if (next == leaves.data() + leaves.size()) {
        throw std::runtime_error("another structure than the one that was read last");
    }
    const Leaf& leaf = *next++;
    const auto type = c10::scalarTypeToTypeMeta(leaf.type);
    at::Tensor part = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(block.storage()), block.key_set(), type);
    part.unsafeGetTensorImpl()->set_storage_offset(leaf.offset / static_cast<int64_t>(type.itemsize()));
    part.unsafeGetTensorImpl()->set_sizes_contiguous(leaf.sizes);
    return THPVariable_Wrap(std::move(part));
}

// A structure like the one that was read last.
py::tuple build_like(const py::object& data, const at::Tensor& block) {
    const auto begin = Clock::now();
    const Leaf* next = leaves.data();
    PyObject* made = like(data.ptr(), block, next);
    const double took = since(begin);
    return py::make_tuple(took, py::reinterpret_steal<py::object>(made));
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
    module.def("read", &read_leaves);
    module.def("stage", &stage_leaves);
    module.def("build", &build_like);
}
