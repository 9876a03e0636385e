//! Where the client runs, if that is a function platform.
//!
//! Follows "client.env" in the MongoDB Handshake specification. Such platforms freeze processes
//! between requests, so the client polls there instead of streaming.

quorate_protocol::named! {
    /// A platform that runs functions on demand and may freeze them in between.
    ///
    /// [`name`](Self::name) is `client.env.name` in the handshake.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum FunctionPlatform {
        /// AWS Lambda.
        AwsLambda = "aws.lambda",
        /// Azure Functions.
        AzureFunctions = "azure.func",
        /// Google Cloud Functions.
        GcpFunctions = "gcp.func",
        /// Vercel, which itself runs on AWS Lambda.
        Vercel = "vercel",
    }
}

impl FunctionPlatform {
    /// The platform that the environment gives away; `None` if it points to none, or to several.
    /// An empty value counts as absent.
    pub fn detect(environment: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let set = |name: &str| environment(name).is_some_and(|value| !value.is_empty());
        let lambda = environment("AWS_EXECUTION_ENV")
            .is_some_and(|value| value.starts_with("AWS_Lambda_"))
            || set("AWS_LAMBDA_RUNTIME_API");
        let vercel = set("VERCEL");
        let signs = [
            (vercel, Self::Vercel),
            (lambda && !vercel, Self::AwsLambda),
            (set("FUNCTIONS_WORKER_RUNTIME"), Self::AzureFunctions),
            (set("K_SERVICE") || set("FUNCTION_NAME"), Self::GcpFunctions),
        ];
        let mut found = signs.into_iter().filter(|(sign, _)| *sign).map(|(_, platform)| platform);
        let platform = found.next()?;
        found.next().is_none().then_some(platform)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(variables: &[(&str, &str)]) -> Option<FunctionPlatform> {
        FunctionPlatform::detect(|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn each_platform_is_known_by_its_variables() {
        let lambda = Some(FunctionPlatform::AwsLambda);
        assert_eq!(detect(&[("AWS_EXECUTION_ENV", "AWS_Lambda_python3.8")]), lambda);
        assert_eq!(detect(&[("AWS_LAMBDA_RUNTIME_API", "x")]), lambda);
        assert_eq!(detect(&[("AWS_EXECUTION_ENV", "AWS_ECS_EC2")]), None);
        let azure = Some(FunctionPlatform::AzureFunctions);
        assert_eq!(detect(&[("FUNCTIONS_WORKER_RUNTIME", "node")]), azure);
        assert_eq!(detect(&[("K_SERVICE", "x")]), Some(FunctionPlatform::GcpFunctions));
        assert_eq!(detect(&[("FUNCTION_NAME", "x")]), Some(FunctionPlatform::GcpFunctions));
        assert_eq!(detect(&[("VERCEL", "1")]), Some(FunctionPlatform::Vercel));
        assert_eq!(detect(&[]), None);
    }

    #[test]
    fn vercel_wins_over_lambda_and_other_pairs_cancel_out() {
        let vercel = detect(&[("VERCEL", "1"), ("AWS_LAMBDA_RUNTIME_API", "x")]);
        assert_eq!(vercel, Some(FunctionPlatform::Vercel));
        assert_eq!(detect(&[("K_SERVICE", "x"), ("FUNCTIONS_WORKER_RUNTIME", "x")]), None);
        assert_eq!(detect(&[("K_SERVICE", "")]), None);
    }
}
