{{/* Refuses values that would lose data, or that the server would refuse. Each message says what to do. */}}
{{- define "chancery.validate" -}}
{{- include "chancery.validateImage" . -}}
{{- include "chancery.validateReplicas" . -}}
{{- include "chancery.validateConfig" . -}}
{{- include "chancery.validateTimes" . -}}
{{- include "chancery.validatePorts" . -}}
{{- include "chancery.validateMetrics" . -}}
{{- include "chancery.validateBackup" . -}}
{{- if .Values.console.enabled -}}
{{- fail "console.enabled is true: this version of Chancery has no console; set it to false" -}}
{{- end -}}
{{- end -}}

{{- define "chancery.validateImage" -}}
{{- with .Values.image -}}
{{- if not .repository -}}
{{- fail "image.repository is empty: no image of Chancery has been published yet; build one, and set image.registry and image.repository" -}}
{{- end -}}
{{- if and (eq .tag "latest") (not .digest) -}}
{{- fail "image.tag is \"latest\": replicas that restart later could run another version; set a version or image.digest" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "chancery.validateReplicas" -}}
{{- $n := int .Values.replicaCount -}}
{{- if eq (mod $n 2) 0 -}}
{{- fail (printf "replicaCount is %d: an even number of voters tolerates no more failures than %d; set an odd number" $n (sub $n 1)) -}}
{{- end -}}
{{- if and (not .Values.persistence.enabled) (or (gt $n 1) .Values.learners.enabled) -}}
{{- fail "persistence.enabled is false: a replica that moves to another node loses its data, and with a majority of the replicas the cluster loses acknowledged writes; enable it, or use one replica without learners for tests" -}}
{{- end -}}
{{- $name := include "chancery.fullname" . -}}
{{- $learners := ternary (int .Values.learners.replicaCount) 0 .Values.learners.enabled -}}
{{- include "chancery.validateLive" (dict "root" . "name" $name "replicas" $n "component" "replica") -}}
{{- include "chancery.validateLive" (dict "root" . "name" (printf "%s-learner" $name) "replicas" $learners "component" "learner") -}}
{{- $minority := div (sub $n 1) 2 | int -}}
{{- if and (gt $n 1) .Values.podDisruptionBudget.enabled (gt (int .Values.podDisruptionBudget.maxUnavailable) $minority) -}}
{{- fail (printf "podDisruptionBudget.maxUnavailable is %d: of %d replicas, at most %d may be unavailable, or no write can be committed; set a smaller number" (int .Values.podDisruptionBudget.maxUnavailable) $n $minority) -}}
{{- end -}}
{{- $rolling := dig "rollingUpdate" "maxUnavailable" 1 .Values.updateStrategy -}}
{{- if ne (toString $rolling) "1" -}}
{{- fail (printf "updateStrategy.rollingUpdate.maxUnavailable is %v: an update that restarts several replicas at once can leave the cluster without a majority; remove it" $rolling) -}}
{{- end -}}
{{- end -}}

{{/* Compares with the running StatefulSet of the release, if Helm sees it. Takes {root, name, replicas, component}. */}}
{{- define "chancery.validateLive" -}}
{{- $values := .root.Values -}}
{{- $live := lookup "apps/v1" "StatefulSet" .root.Release.Namespace .name -}}
{{- if $live -}}
{{- $set := printf "the StatefulSet %s/%s" .root.Release.Namespace .name -}}
{{- $now := int (dig "spec" "replicas" 0 $live) -}}
{{- if and (lt .replicas $now) (not $values.allowShrink) -}}
{{- $advice := printf "run `chancery cluster remove` for the replicas %%d to %%d, the highest first, and then set allowShrink to true" -}}
{{- if eq .component "replica" -}}
{{- $advice = printf $advice (add1 .replicas) $now -}}
{{- fail (printf "replicaCount is %d, and %s has %d replicas: the others would remain voters, and the cluster could lose its majority; %s" .replicas $set $now $advice) -}}
{{- else -}}
{{- $value := ternary (printf "learners.replicaCount is %d" .replicas) "learners.enabled is false" $values.learners.enabled -}}
{{- $advice = printf $advice (add 101 .replicas) (add 100 $now) -}}
{{- fail (printf "%s, and %s has %d replicas: the others would remain members of the cluster; %s" $value $set $now $advice) -}}
{{- end -}}
{{- end -}}
{{- if .replicas -}}
{{- include "chancery.validateVolumes" (dict "values" $values.persistence "set" $set "live" $live "root" .root "name" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Refuses changes of the volumes, which the API server refuses with a text that does not say what to do. */}}
{{- define "chancery.validateVolumes" -}}
{{- $templates := dig "spec" "volumeClaimTemplates" list .live -}}
{{- if ne .values.enabled (not (empty $templates)) -}}
{{- fail (printf "persistence.enabled is %v, and %s %s: Kubernetes does not change the volumes of a StatefulSet; set persistence.enabled to %v, or install another release" .values.enabled .set (ternary "has no volumes" "has volumes" (empty $templates)) (not .values.enabled)) -}}
{{- end -}}
{{- if $templates -}}
{{- $claim := first $templates -}}
{{- $size := dig "spec" "resources" "requests" "storage" "0" $claim -}}
{{- $wanted := float64 (include "chancery.bytes" .values.size) -}}
{{- $there := float64 (include "chancery.bytes" $size) -}}
{{- if lt $wanted $there -}}
{{- fail (printf "persistence.size is %s, and the volumes of %s have %s: a volume cannot become smaller; set %s or more" .values.size .set $size $size) -}}
{{- end -}}
{{- $recreate := printf "run `kubectl --namespace %s delete statefulset %s --cascade=orphan`, and repeat the upgrade" .root.Release.Namespace .name -}}
{{- if gt $wanted $there -}}
{{- fail (printf "persistence.size is %s, and %s requests %s: Kubernetes does not change the volumes of a StatefulSet; request %s in each claim, %s (docs/kubernetes.md, \"Grow a volume\")" .values.size .set $size .values.size $recreate) -}}
{{- end -}}
{{- $live := dict "storageClass" (dig "spec" "storageClassName" "" $claim) "accessModes" (dig "spec" "accessModes" list $claim) "annotations" (dig "metadata" "annotations" dict $claim) -}}
{{- range $key, $value := $live -}}
{{- $new := get $.values $key -}}
{{- if ne (toJson $new) (toJson $value) -}}
{{- fail (printf "persistence.%s is %s, and %s has %s: Kubernetes does not change the volumes of a StatefulSet; set the previous value, or, to change only volumes created later, %s" $key (toJson $new) $.set (toJson $value) $recreate) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A quantity of Kubernetes, such as 10Gi, in bytes. */}}
{{- define "chancery.bytes" -}}
{{- $units := dict "" 1.0 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 -}}
{{- $number := regexFind "^[0-9.]+" . -}}
{{- mulf (float64 $number) (get $units (trimPrefix $number .)) | printf "%.0f" -}}
{{- end -}}

{{/* A time of the configuration, such as 15s, in seconds. */}}
{{- define "chancery.seconds" -}}
{{- $number := regexFind "^[0-9]+" . -}}
{{- mulf (float64 $number) (get (dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0) (trimPrefix $number .) | default 1.0) -}}
{{- end -}}

{{- define "chancery.validateTimes" -}}
{{- if not .Values.existingConfigSecret -}}
{{- $timeout := dig "shutdown" "timeout" "10s" .Values.config | toString -}}
{{- $grace := int .Values.terminationGracePeriodSeconds -}}
{{- $needed := addf (include "chancery.seconds" $timeout) 20 | ceil | int -}}
{{- if lt $grace $needed -}}
{{- fail (printf "terminationGracePeriodSeconds is %d, and shutdown.timeout is %s: after this timeout, the replica transfers leadership and closes its store, and Kubernetes might kill it first; set terminationGracePeriodSeconds to at least %d" $grace $timeout $needed) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "chancery.validateConfig" -}}
{{- if and .Values.config .Values.existingConfigSecret -}}
{{- fail "config and existingConfigSecret are both set: a replica reads one configuration; set only one of them" -}}
{{- end -}}
{{- if and .Values.secrets.existingSecret .Values.existingConfigSecret -}}
{{- fail "secrets.existingSecret and existingConfigSecret are both set: the chart cannot change the configuration in your Secret; set secrets.key_file there to a file of extraVolumes, and remove secrets.existingSecret" -}}
{{- end -}}
{{- if and .Values.secrets.existingSecret (dig "secrets" "key_file" "" .Values.config) -}}
{{- fail "config.secrets.key_file and secrets.existingSecret are both set: a replica has one key file; set only one of them" -}}
{{- end -}}
{{- $owned := dict
  "store" (list "data_dir")
  "raft" (list "replica_id" "address" "advertise" "join" "peers" "learner" "tls_cert" "tls_key" "tls_ca")
  "xds" (list "address" "tls_cert" "tls_key")
  "admin" (list "address" "tls_cert" "tls_key") -}}
{{- range $section, $keys := .Values.config -}}
{{- range $key, $_ := $keys -}}
{{- if has $key (default list (get $owned $section)) -}}
{{- $instead := ternary (printf "use tls.%s" $section) "remove it" (hasPrefix "tls_" $key) -}}
{{- fail (printf "config.%s.%s is set: the chart sets this key for each replica; %s" $section $key $instead) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "chancery.validatePorts" -}}
{{- range $port := list "xds" "admin" "raft" -}}
{{- $tls := index $.Values.tls $port -}}
{{- if and $tls.existingSecret $tls.certManager.enabled -}}
{{- fail (printf "tls.%s.existingSecret and tls.%s.certManager.enabled are both set: a port has one certificate; set only one of them" $port $port) -}}
{{- end -}}
{{- if and $tls.certManager.enabled (not $tls.certManager.issuerRef.name) -}}
{{- fail (printf "tls.%s.certManager.issuerRef.name is empty: cert-manager needs an issuer; name an Issuer or ClusterIssuer" $port) -}}
{{- end -}}
{{- $isOpen := or $tls.existingSecret $tls.certManager.enabled $.Values.existingConfigSecret (dig $port "allow_plaintext" false $.Values.config) -}}
{{- if not $isOpen -}}
{{- fail (printf "the %s port has no TLS: its traffic would cross the network unencrypted and unauthenticated; set tls.%s.existingSecret or tls.%s.certManager, or config.%s.allow_plaintext to true if the network is trusted" $port $port $port $port) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "chancery.validateMetrics" -}}
{{- with .Values.metrics -}}
{{- if .serviceMonitor.enabled -}}
{{- if and $.Values.networkPolicy.enabled (not $.Values.networkPolicy.metricsFrom) -}}
{{- fail "metrics.serviceMonitor.enabled is true, and networkPolicy.metricsFrom is empty: Prometheus could not connect; set metricsFrom to the pods of Prometheus" -}}
{{- end -}}
{{- if and (include "chancery.adminCertificates" $) (not $.Values.tls.admin.certManager.enabled) -}}
{{- fail "metrics.serviceMonitor.enabled is true, and the admin port accepts certificates of tls.admin.existingSecret: the chart has no certificate for Prometheus; use tls.admin.certManager, or define a ServiceMonitor in extraObjects" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "chancery.validateBackup" -}}
{{- if and .Values.metrics.prometheusRule.backupMaxAge (not .Values.backup.enabled) -}}
{{- fail "metrics.prometheusRule.backupMaxAge is set, and backup.enabled is false: there would be no backups to watch; enable them, or remove backupMaxAge" -}}
{{- end -}}
{{- if and .Values.backup.enabled (include "chancery.adminCertificates" .) (not (include "chancery.operatorSecret" .)) -}}
{{- fail "backup.enabled is true, and the admin port accepts certificates of its CA: the backup needs the certificate of an operator; set backup.existingSecret, or use tls.admin.certManager" -}}
{{- end -}}
{{- end -}}
