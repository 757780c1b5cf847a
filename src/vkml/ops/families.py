"""The operators of each family, so that a family is imported when one of its operators is wanted."""

from __future__ import annotations

OPERATORS = {
    "activation": (
        "Celu", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "PRelu", "Relu", "Selu",
        "Shrink", "Sigmoid", "Softplus", "Softsign", "Swish", "ThresholdedRelu",
    ),
    "activation_extensions": (
        "com.microsoft.BiasAdd", "com.microsoft.BiasGelu", "com.microsoft.BiasSoftmax",
        "com.microsoft.BiasSplitGelu", "com.microsoft.FastGelu", "com.microsoft.GatedAdd",
        "com.microsoft.Gelu", "com.microsoft.GemmFastGelu", "com.microsoft.QuickGelu", "com.microsoft.SwiGLU",
    ),
    "arg_reduce": (
        "ArgMax", "ArgMin",
    ),
    "attention": (
        "vkml.Attention",
    ),
    "attention_extensions": (
        "com.microsoft.Attention", "com.microsoft.DecoderMaskedMultiHeadAttention",
        "com.microsoft.MultiHeadAttention",
    ),
    "attention_gradient": (
        "vkml.AttentionGradient",
    ),
    "bitwise": (
        "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor",
    ),
    "block_quantization": (
        "com.microsoft.GatherBlockQuantized", "com.microsoft.MatMulNBits",
    ),
    "cast": (
        "BitCast", "Cast", "CastLike",
    ),
    "causal_conv": (
        "CausalConvWithState",
    ),
    "comparison": (
        "And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or", "Where", "Xor",
    ),
    "complex": (
        "vkml.Angle", "vkml.Complex", "vkml.Conj", "vkml.Imag", "vkml.Magnitude", "vkml.Real",
        "vkml.RoundParts", "vkml.Sgn",
    ),
    "control": (
        "If", "Loop", "Scan", "SequenceMap",
    ),
    "conv": (
        "Conv", "ConvInteger",
    ),
    "conv_gradients": (
        "vkml.ConvWeightGradient",
    ),
    "conv_transpose": (
        "ConvTranspose",
    ),
    "creation": (
        "Constant", "ConstantOfShape", "EyeLike", "Range",
    ),
    "cross_entropy": (
        "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss",
    ),
    "cumulative": (
        "CumProd", "CumSum",
    ),
    "deform_conv": (
        "DeformConv",
    ),
    "detection": (
        "NonMaxSuppression",
    ),
    "dropout": (
        "Dropout",
    ),
    "einsum": (
        "Einsum",
    ),
    "elementwise": (
        "Add", "Clip", "Div", "Max", "Mean", "Min", "Mod", "Mul", "Pow", "Sub", "Sum",
    ),
    "experts": (
        "com.microsoft.MoE",
    ),
    "expression": (
        "vkml.Expression",
    ),
    "features": (
        "ai.onnx.ml.ArrayFeatureExtractor", "ai.onnx.ml.Binarizer", "ai.onnx.ml.FeatureVectorizer",
        "ai.onnx.ml.Imputer", "ai.onnx.ml.Normalizer", "ai.onnx.ml.Scaler",
    ),
    "flex_attention": (
        "ai.onnx.preview.FlexAttention", "vkml.Widened",
    ),
    "fourier": (
        "vkml.Fourier", "vkml.FourierReal", "vkml.RealFourier",
    ),
    "fused": (
        "vkml.Fused", "vkml.Native",
    ),
    "grouped_attention": (
        "com.microsoft.GroupQueryAttention",
    ),
    "image": (
        "Resize", "Upsample",
    ),
    "image_files": (
        "ImageDecoder",
    ),
    "index": (
        "Gather", "GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND", "TensorScatter",
    ),
    "labels": (
        "ai.onnx.ml.CategoryMapper", "ai.onnx.ml.LabelEncoder", "ai.onnx.ml.OneHotEncoder",
    ),
    "linear_algebra": (
        "Det", "vkml.Cholesky", "vkml.Determinant", "vkml.Eig", "vkml.EigH", "vkml.Inverse", "vkml.QR",
        "vkml.SVD", "vkml.SlogDet", "vkml.Solve",
    ),
    "linear_attention": (
        "LinearAttention", "com.microsoft.LinearAttention",
    ),
    "linear_models": (
        "ai.onnx.ml.LinearClassifier", "ai.onnx.ml.LinearRegressor", "ai.onnx.ml.SVMClassifier",
        "ai.onnx.ml.SVMRegressor",
    ),
    "maps": (
        "ai.onnx.ml.CastMap", "ai.onnx.ml.DictVectorizer", "ai.onnx.ml.ZipMap",
    ),
    "matmul": (
        "Gemm", "MatMul", "MatMulInteger",
    ),
    "matrix_exponential": (
        "vkml.MatrixExponential",
    ),
    "moments": (
        "vkml.Moments",
    ),
    "ngrams": (
        "TfIdfVectorizer",
    ),
    "norm": (
        "BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization",
        "RMSNormalization",
    ),
    "norm_extensions": (
        "SimplifiedLayerNormalization", "com.microsoft.BranchwiseRMSNorm",
        "com.microsoft.EmbedLayerNormalization", "com.microsoft.GatedRMSNorm", "com.microsoft.GroupNorm",
        "com.microsoft.SkipGroupNorm", "com.microsoft.SkipLayerNormalization",
        "com.microsoft.SkipSimplifiedLayerNormalization",
    ),
    "onnx_attention": (
        "Attention",
    ),
    "optimizers": (
        "ai.onnx.preview.training.Adagrad", "ai.onnx.preview.training.Adam",
        "ai.onnx.preview.training.Momentum",
    ),
    "optional": (
        "Optional", "OptionalGetElement", "OptionalHasElement",
    ),
    "padding": (
        "CenterCropPad", "Pad", "Tile",
    ),
    "philox": (
        "vkml.Philox", "vkml.PhiloxAdvance",
    ),
    "places": (
        "vkml.CommonDivisor", "vkml.PlacesAlong", "vkml.SearchSorted",
    ),
    "pool": (
        "AveragePool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "LpPool", "MaxPool",
    ),
    "pool_gradients": (
        "vkml.MaxPoolGradient",
    ),
    "product_extensions": (
        "com.microsoft.CDist", "com.microsoft.FusedConv", "com.microsoft.FusedGemm",
        "com.microsoft.FusedMatMul", "com.microsoft.FusedMatMulActivation", "com.microsoft.MatMulBnb4",
        "com.microsoft.MatMulInteger16", "com.microsoft.NhwcConv", "com.microsoft.NhwcFusedConv",
        "com.microsoft.TransposeMatMul",
    ),
    "quantization": (
        "DequantizeLinear", "DynamicQuantizeLinear", "QuantizeLinear",
    ),
    "quantized_attention": (
        "com.microsoft.QAttention", "com.microsoft.QEmbedLayerNormalization",
    ),
    "quantized_extensions": (
        "com.microsoft.DequantizeLinear", "com.microsoft.DynamicQuantizeMatMul",
        "com.microsoft.MatMulIntegerToFloat", "com.microsoft.NhwcMaxPool", "com.microsoft.QGemm",
        "com.microsoft.QLinearAdd", "com.microsoft.QLinearAveragePool", "com.microsoft.QLinearConcat",
        "com.microsoft.QLinearConv", "com.microsoft.QLinearGlobalAveragePool",
        "com.microsoft.QLinearLeakyRelu", "com.microsoft.QLinearMul", "com.microsoft.QLinearReduceMean",
        "com.microsoft.QLinearSigmoid", "com.microsoft.QLinearSoftmax", "com.microsoft.QLinearWhere",
        "com.microsoft.QuantizeLinear",
    ),
    "quantized_products": (
        "QLinearConv", "QLinearMatMul",
    ),
    "random": (
        "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
    ),
    "random_state": (
        "vkml.RandomState",
    ),
    "rearrange": (
        "DepthToSpace", "ReverseSequence", "SpaceToDepth", "Trilu",
    ),
    "recurrent": (
        "GRU", "LSTM", "RNN",
    ),
    "reduce": (
        "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
        "ReduceProd", "ReduceSum", "ReduceSumSquare",
    ),
    "renamed_extensions": (
        "com.microsoft.ExpandDims", "com.microsoft.GatherND", "com.microsoft.GridSample",
        "com.microsoft.Inverse", "com.microsoft.NGramRepeatBlock", "com.microsoft.Pad", "com.microsoft.Range",
        "com.microsoft.Trilu", "com.microsoft.Unique",
    ),
    "resample": (
        "vkml.Resample",
    ),
    "roi_gradient": (
        "vkml.RoiAlignGradient",
    ),
    "roi_pool": (
        "MaxRoiPool", "vkml.MaxRoiPlaces",
    ),
    "rotary": (
        "RotaryEmbedding",
    ),
    "rotary_extension": (
        "com.microsoft.RotaryEmbedding",
    ),
    "sampling": (
        "AffineGrid", "GridSample", "RoiAlign",
    ),
    "selection": (
        "Compress", "NonZero", "OneHot", "TopK", "Unique",
    ),
    "sequence": (
        "ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase",
        "SequenceInsert", "SequenceLength", "SplitToSequence",
    ),
    "shape": (
        "Expand", "Flatten", "Reshape", "Shape", "Size", "Squeeze", "Transpose", "Unsqueeze",
    ),
    "signal": (
        "BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix",
    ),
    "slicing": (
        "Concat", "Slice", "Split",
    ),
    "softmax": (
        "Hardmax", "LogSoftmax", "Softmax",
    ),
    "string_extensions": (
        "com.microsoft.MurmurHash3", "com.microsoft.Tokenizer",
    ),
    "strings": (
        "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit",
    ),
    "training": (
        "ai.onnx.preview.training.Gradient",
    ),
    "transforms": (
        "DFT", "STFT",
    ),
    "tree_ensembles": (
        "ai.onnx.ml.TreeEnsemble", "ai.onnx.ml.TreeEnsembleClassifier", "ai.onnx.ml.TreeEnsembleRegressor",
    ),
    "unary": (
        "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Ceil", "Cos", "Cosh", "Erf",
        "Exp", "Floor", "Identity", "IsInf", "IsNaN", "Log", "Neg", "Reciprocal", "Round", "Sign", "Sin",
        "Sinh", "Sqrt", "Tan", "Tanh",
    ),
    "unpool": (
        "Col2Im", "MaxUnpool",
    ),
    "unscaled_norm": (
        "LRN", "LpNormalization", "MeanVarianceNormalization",
    ),
}  # fmt: skip
"""Family → its operators; those of other domains than ONNX's own with the domain before a dot."""
