//! A model of some kilobytes, written in the format of ONNX: `scores` of every box of every camera, and their `total`.
//!
//! Three inputs for each camera: `0.boxes` (f32[16, 4]), `0.depths` (f32[16, 1]), `0.classes` (i64[16, 1]), and so on. A score is
//! `boxes . WEIGHTS + depths + classes`.

pub(crate) const BOXES: usize = 16;
pub(crate) const WEIGHTS: [f32; 4] = [1.0, 2.0, 3.0, 4.0];

/// `TensorProto.DataType`.
const FLOAT: u64 = 1;
const INT64: u64 = 7;

/// The model for so many cameras, as a file would have it (`ModelProto`).
pub(crate) fn bytes(cameras: usize) -> Vec<u8> {
    let opset = Message::default().number(2, 13);
    Message::default().number(1, 8).message(7, graph(cameras)).message(8, opset).0
}

fn graph(cameras: usize) -> Message {
    let names =
        |field: &str| -> Vec<String> { (0..cameras).map(|camera| format!("{camera}.{field}")).collect() };
    let rows = (cameras * BOXES) as u64;
    let mut graph = Message::default()
        .message(1, node("Concat", &names("boxes"), "boxes").message(5, attribute("axis", 0)))
        .message(1, node("Concat", &names("depths"), "depths").message(5, attribute("axis", 0)))
        .message(1, node("Concat", &names("classes"), "classes").message(5, attribute("axis", 0)))
        .message(1, node("Cast", &["classes"], "float_classes").message(5, attribute("to", FLOAT)))
        .message(1, node("MatMul", &["boxes", "weights"], "products"))
        .message(1, node("Add", &["products", "depths"], "sums"))
        .message(1, node("Add", &["sums", "float_classes"], "scores"))
        .message(1, node("ReduceSum", &["scores"], "total").message(5, attribute("keepdims", 0)))
        .text(2, "cameras")
        .message(5, weights());
    for camera in 0..cameras {
        graph = graph
            .message(11, value(&format!("{camera}.boxes"), FLOAT, &[BOXES as u64, 4]))
            .message(11, value(&format!("{camera}.depths"), FLOAT, &[BOXES as u64, 1]))
            .message(11, value(&format!("{camera}.classes"), INT64, &[BOXES as u64, 1]));
    }
    graph.message(12, value("scores", FLOAT, &[rows, 1])).message(12, value("total", FLOAT, &[]))
}

/// `NodeProto`
fn node<N: AsRef<str>>(operator: &str, inputs: &[N], output: &str) -> Message {
    let node = inputs.iter().fold(Message::default(), |node, input| node.text(1, input.as_ref()));
    node.text(2, output).text(4, operator)
}

/// `AttributeProto` of an integer
fn attribute(name: &str, number: u64) -> Message {
    Message::default().text(1, name).number(3, number).number(20, 2)
}

/// `TensorProto`
fn weights() -> Message {
    let raw: Vec<u8> = WEIGHTS.iter().flat_map(|weight| weight.to_le_bytes()).collect();
    let shape = Message::default().number(1, WEIGHTS.len() as u64).number(1, 1);
    shape.number(2, FLOAT).text(8, "weights").bytes(9, &raw)
}

/// `ValueInfoProto` of a tensor
fn value(name: &str, element: u64, shape: &[u64]) -> Message {
    let shape = shape
        .iter()
        .fold(Message::default(), |shape, dim| shape.message(1, Message::default().number(1, *dim)));
    let tensor = Message::default().number(1, element).message(2, shape);
    Message::default().text(1, name).message(2, Message::default().message(1, tensor))
}

/// A message of protobuf: fields one after the other, each with its number.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn number(mut self, field: u64, number: u64) -> Self {
        self.varint(field << 3);
        self.varint(number);
        self
    }

    fn bytes(mut self, field: u64, bytes: &[u8]) -> Self {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    fn text(self, field: u64, text: &str) -> Self {
        self.bytes(field, text.as_bytes())
    }

    fn message(self, field: u64, message: Self) -> Self {
        self.bytes(field, &message.0)
    }

    /// Seven bits a byte, the lowest first; the eighth bit says that more follow.
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }
}
