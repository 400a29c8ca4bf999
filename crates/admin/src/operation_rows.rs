//! The macros that make functions, gRPC services, HTTP routes and descriptions from rows, one row per operation.

/// The parts of a row:
/// - `(ctx, request: Message) -> Reply`: the names that the row uses, the message of the request, and the reply. A
///   reply in pieces has the name of the stream in the gRPC service.
/// - `needs`: the right without which the operation does not run;
/// - `record`: `read`, `act` with the record in the audit log, or `write` with the record of a write;
/// - `http`: the method and path, and each field of the request with its parameter; or a function that reads the
///   request, whether it reads the body, and the parameters;
/// - `problems_in_answer`: whether the answer of gRPC has the problems of rejected input;
/// - `run`: the operation.
macro_rules! operations {
    ($(
        service $service:ident in $server:ident {
            $(
                #[doc = $doc:literal]
                $method:ident($ctx:ident, $request:ident: $message:ident) -> $reply:ty $(, as $stream:ident)? {
                    needs: $access:expr,
                    record: $how:ident $(($operation:expr))?,
                    $(http: $verb:ident $path:literal $form:tt,)?
                    $(problems_in_answer: $inside:expr,)?
                    run: $run:expr $(,)?
                }
            )+
        }
    )+) => {
        $($(
            #[doc = $doc]
            #[doc = ""]
            #[doc = "# Errors"]
            #[doc = "Fails if the caller has no right to the operation, or if the operation fails."]
            pub(crate) async fn $method(call: &Call, $request: pb::$message) -> Result<$reply, AdminError> {
                let record = Record::new(call, or!([$($operation)?] None));
                // The future of an operation is large, and each layer around it would copy it.
                record.$how(Box::pin(async {
                    let $ctx = &record.permit(<pb::$message as Needs>::NEEDS)?;
                    $run
                })).await
            }
        )+)+

        $($(
            impl Needs for pb::$message {
                const NEEDS: Access = $access;
            }
        )+)+

        $(
            #[tonic::async_trait]
            impl $server::$service for Grpc {
                $(
                    $(type $stream = <$reply as Reply>::Message;)?

                    async fn $method(
                        &self,
                        request: Request<pb::$message>,
                    ) -> Result<Response<<$reply as Reply>::Message>, Status> {
                        let call = Call::of(&self.0, request.extensions());
                        let $request = request.into_inner();
                        let adapt = or!([$(problems_in($inside))?] identity);
                        let reply = adapt($method(&call, $request).await)?;
                        Ok(Response::new(reply.into_message()))
                    }
                )+
            }
        )+

        /// The operations that HTTP has.
        pub(crate) const OPERATIONS: &[Described] = &[$($($(
            Described {
                id: stringify!($method),
                method: stringify!($verb),
                path: $path,
                summary: $doc,
                needs: <pb::$message as Needs>::NEEDS,
                reads_body: parameters!(@body $form),
                parameters: parameters!($form),
                reply: <$reply as HttpReply>::NAME,
                content_type: <$reply as HttpReply>::CONTENT_TYPE,
            },
        )?)+)+];

        /// Adds the HTTP routes of the operations.
        pub(crate) fn add_routes(to: &mut Routes) {
            $($($(
                let run = |call, request| async move { $method(&call, request).await };
                to.add($path, MethodFilter::$verb, bind!($message $form), run);
            )?)+)+
        }
    };
}

/// Returns the first value, if the row has it.
macro_rules! or {
    ([] $default:expr) => {
        $default
    };
    ([$given:expr] $default:expr) => {
        $given
    };
}

/// Returns the function that reads a request.
macro_rules! bind {
    ($message:ident { $($field:ident: $kind:ident($($param:literal)?)),* $(,)? }) => {
        |mut input: Input| async move {
            let request = pb::$message { $($field: input.params.$kind($($param)?)?),* };
            input.params.finish()?;
            Ok(request)
        }
    };
    ($message:ident ($bind:path, $body:literal, [$($parameters:tt)*])) => {
        $bind
    };
}

/// Returns the parameters of a request, and whether it has a body.
macro_rules! parameters {
    (@body ($bind:path, $body:literal, [$($parameters:tt)*])) => {
        $body
    };
    (@body $fields:tt) => {
        false
    };
    (($bind:path, $body:literal, [$($name:literal $kind:ident),* $(,)?])) => {
        &[$(($name, stringify!($kind))),*]
    };
    ({ $($field:ident: $kind:ident($($param:literal)?)),* $(,)? }) => {
        &[$((or!([$($param)?] ""), stringify!($kind))),*]
    };
}
